"""Whatever a refusal suggests is typed after the overrides that it refused: the refusal is gone, and another one
leads on, until the run can run.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.engines import engine
from jobs.engines.engine import Engine
from jobs.plan.legality import broken, but_memory, problems
from jobs.plan.rules import memory, sbatch_variables
from jobs.plan.rules.rule import Rule, multiples_near
from jobs.schema import EngineKind, Run
from jobs.secrets import config_holds_no_secret
from jobs.work import work
from jobs.work.program import rules as program_rules
from jobs.work.work import Work
from tests.support.suggestions import Overrides, composed, run_of, suggestions

H100 = "cluster=xe9680_h100 model=llama2_7b ranks_per_node=8 job.micro_batch_size=1 scaling.global_batch_size=64"
NEMO = f"engine=nemo {H100}"
FINETUNE = "engine=litgpt job=finetune_full data=docstrings parallelism=single ranks_per_node=1 job.clip_norm=null"
LORA = FINETUNE.replace("finetune_full", "finetune_lora")
PRETRAIN = "engine=litgpt parallelism=single ranks_per_node=1 engine.compile=true"
FLOAT8 = f"{H100} engine.float8=true engine.compile=true job.precision=bfloat16"
EXPERTS = "model.mlp=LLaMAMoE model.experts=4 model.experts_per_token=2"
LITE = "model=deepseek_v2_lite"
OF_DEEPSEEK = (
    "model.shared_experts=1",
    "model.dense_layers=1",
    f"{EXPERTS} model.shared_experts=1",
    f"{EXPERTS} model.dense_layers=90",
    f"{LITE} model.experts=0 model.experts_per_token=0",
    f"{LITE} model.router.groups=3",
    "model=deepseek_v3 model.router.scores_per_group=33",
    "model=deepseek_v3 model.router.groups=64 model.router.chosen_groups=1",
    f"{LITE} model.latent.rope_head_size=7",
    f"{LITE} model.latent.value_head_size=999",
    f"{LITE} model.norm_qk=true",
    f"{LITE} job=finetune_lora data=docstrings",
    f"{LITE} job=finetune_lora data=docstrings job.lora.targets=[query,value]",
    f"{LITE} job=finetune_lora data=docstrings job.lora.targets=[query] job.lora.quantize_base=nf4",
    f"{LITE} cluster=xe9680_h100 engine.kernels=liger",
    f"{LITE} cluster=xe9680_h100 parallelism=cp_fsdp",
    "job.expert_bias_speed=0.001",
)
SCOUT = "model=llama4_scout"
OF_LLAMA4 = (
    "model.chunked_window=true",
    f"{SCOUT} model.sliding_window=null",
    f"{SCOUT} model.rope_in_windows=false",
    f"{SCOUT} model.rope_local_base=10000",
    "model.norm_rotated=true model.norm_qk=true",
    "model.experts_every=2",
    "model=llama4_maverick model.experts_every=50",
)
PP8 = "ranks_per_node=4 parallelism=pp parallelism.pipeline=4 model=llama2_7b"
STUDY = "experiment=llama2_500_steps"
# A point for every refusal; those without another mistake of their own come first in a rule.
ZERO = "engine=deepspeed data=docstrings parallelism=zero"
SERVE = "job=serve engine=vllm ranks_per_node=2 serving.concurrency=4"
ILLEGAL = (
    "nodes=0 job.steps=-1 job.unmeasured_steps=0",
    "job.warmup_steps=-1 launcher.requeues=-1 cluster.memory_gb_per_node=-4 model.experts=-1",
    "job.learning_rate=-1 job.beta1=1.5 job.seed=-1 job.clip_norm=0",
    "job.min_learning_rate=1",
    "job.clip_norm=nan",
    "notify.command=/no/such/program",
    "cluster=generic_slurm launcher=slurm cluster.stage_environment=tmp",
    "cluster=generic_slurm launcher=slurm cluster.stage_environment=/tmp cluster.python=/usr/bin/python3",
    "cluster=generic_slurm launcher=slurm cluster.stage_environment=/tmp cluster.container=/images/nemo.sqsh",
    "notify.apprise=/no/such/file",
    "name=a/b",
    "name=code-x",
    'name="a\u00adb"',
    "sweep=a:b",
    "runs_dir=/a:b",
    "runs_dir=/a%j",
    "job.epochs=1",
    "job.steps=null",
    "scaling.sequences_per_rank=4",
    "scaling=weak scaling.global_batch_size=8",
    "scaling=weak scaling.sequences_per_rank=null",
    "job.bucket_batches=4",
    "job.checkpoint_copy_dir=local job.checkpoint_every_steps=2",
    "job.checkpoint_copy_dir=/local",
    "job.sequence_length=1024",
    "model.kv_heads=3",
    "model.experts=4",
    "model.experts=4 model.experts_per_token=5",
    "model.moe_intermediate_size=64",
    "model.swiglu_limit=7",
    "model.norm_qk_whole=true",
    *OF_DEEPSEEK,
    *OF_LLAMA4,
    "model.full_attention_every=6",
    "model.rope_local_base=10000",
    "model.parallel_residual=true model.norm_place=around",
    "model=llama31_8b model.rope_scaling.low_freq_factor=null",
    "model=olmo3_7b model.rope_scaling.beta_fast=null",
    f"model=olmo3_7b {PRETRAIN}",
    f"model.attention_sinks=true {PRETRAIN}",
    "cluster.service_units_per_node_hour=0",
    "cluster.pue=0.5",
    "cluster=xe9680_h100 ranks_per_node=16 scaling.global_batch_size=64",
    "cluster.max_nodes=2 nodes=4",
    "cluster.max_wall_time_min=30",
    "cluster=xe9680_h100 launcher=local",
    "launcher=pilot",
    "launcher=pilot launcher.pilot_nodes=1 launcher.pilot_wall_time_min=61 nodes=2",
    "launcher=pilot launcher.pilot_nodes=1 launcher.pilot_wall_time_min=60",
    "launcher=pilot launcher.pilot_nodes=1 launcher.pilot_wall_time_min=1",
    "launcher=pilot launcher.pilot_nodes=8 launcher.pilot_wall_time_min=90 cluster.max_nodes=2",
    "launcher=pilot launcher.pilot_nodes=1 launcher.pilot_wall_time_min=30 cluster.max_wall_time_min=30",
    "launcher.spare_nodes=1",
    "launcher.exclude_known_bad=true",
    "launcher=pilot launcher.pilot_nodes=2 launcher.pilot_wall_time_min=90 launcher.spare_nodes=1",
    "launcher=slurm launcher.spare_nodes=1 launcher.requeues=0",
    "cluster.sbatch.nice=low",
    "cluster.sbatch.licenses='matlab:'",
    "nodes=4 cluster.sbatch.segment=3",
    "nodes=2 cluster.sbatch.segment=0",
    "cluster.exclusive=true cluster.sbatch.oversubscribe=yes",
    "cluster.sbatch.requeue=expedite launcher.requeues=0",
    "launcher=slurm launcher.spare_nodes=1 cluster.max_nodes=1",
    "wall_time_min=1 launcher.stop_before_limit_s=90",
    "gpu=v100_sxm2_32gb job.precision=bfloat16",
    "data.held_out_samples=-1",
    "data.test_split=1.5",
    "data.shots=1",
    "data=docstrings data.shots=1",
    "job=evaluate",
    "job=evaluate ranks_per_node=1 engine=nemo",
    "data.test_split=0.2 data.held_out_samples=4",
    "data.prompt=alpaca",
    "data=docstrings data.prompt=pubmedqa",
    "stages=all data.held_out_samples=8 job.export=true stages.evaluate.gpus=2",
    "stages=all data.held_out_samples=8 job.export=true stages.report.wall_time_min=0",
    "stages=all data.held_out_samples=8 job.export=true launcher=script",
    "stages=all",
    "stages=all data.held_out_samples=8",
    "stages=all data.held_out_samples=8 job.export=true engine=nemo",
    "parallelism=fsdp_full parallelism.sharding=null",
    "parallelism.sharding=FULL_SHARD parallelism.data_shard=2",
    "parallelism=fsdp_no_shard parallelism.data_shard=2",
    "parallelism.prefetch=1",
    "parallelism=fsdp_no_shard parallelism.prefetch=1",
    "parallelism.reduce_each=step",
    "job.optimizer=adamw_stochastic",
    "job=finetune_lora job.optimizer=muon",
    "job=finetune_lora job.optimizer=adamw_8bit",
    "job.optimizer=adamw_8bit parallelism=tp parallelism.tensor=2 ranks_per_node=2 model.intermediate_size=250",
    "job.optimizer_arguments.momentum=0.9",
    "job.optimizer_class=NAdam",
    "job.optimizer_class=torch.optim.NAdam job.optimizer=muon",
    "job.optimizer_class=torch.optim.NAdam engine.optimizer_loop=foreach",
    "job.z_loss=1e-4 engine.loss=whole",
    "job=finetune_lora job.ema_decay=0.99",
    "job.optimizer=muon engine.optimizer_loop=foreach",
    "parallelism=single ranks_per_node=1 engine.gradients=bfloat16 job.precision=bfloat16",
    "job.decay=none job.decay_steps=10",
    "job.steps=20 job.warmup_steps=15 job.decay_steps=10",
    "job.optimizer=adamw_stochastic engine.parameters=bfloat16 job.precision=bfloat16 engine.optimizer_loop=single",
    "ranks_per_node=4 parallelism=pp_fsdp parallelism.reduce_each=step",
    "parallelism.tensor=8 ranks_per_node=8",
    "parallelism.sequence_parallel=true",
    "job.expert_balance_loss=0.01",
    f"{H100} {EXPERTS} parallelism=cp_fsdp job.expert_balance_loss=0.01",
    "parallelism.expert=2",
    f"{EXPERTS} parallelism.expert=2",
    f"{EXPERTS} parallelism=fsdp_full parallelism.expert=3 ranks_per_node=6 scaling.global_batch_size=24",
    f"{EXPERTS} parallelism=fsdp_hybrid parallelism.data_shard=2 parallelism.expert=4 ranks_per_node=4",
    "parallelism=tp job.sequence_length=33",
    f"{H100} parallelism=cp_fsdp parallelism.context=4 job.sequence_length=4092",
    "parallelism=cp_fsdp",
    "parallelism.stages_per_rank=2 parallelism.stage_layers=[2,2]",
    "parallelism=pp parallelism.stages_per_rank=2",
    "parallelism=pp parallelism.schedule=ZBVZeroBubble parallelism.stages_per_rank=1",
    "parallelism=pp parallelism.stage_layers=[0,4]",
    "parallelism=pp parallelism.pipeline=8 ranks_per_node=8",
    "parallelism=pp parallelism.schedule=Interleaved1F1B parallelism.stages_per_rank=3",
    "parallelism=pp parallelism.schedule=LoopedBFS parallelism.stages_per_rank=3 model=llama2_7b",
    "parallelism=pp model.tie_embeddings=true",
    "parallelism.tensor=4 parallelism=tp",
    "parallelism=single",
    "parallelism=fsdp_full parallelism.data_shard=3 ranks_per_node=4",
    "parallelism=fsdp_full parallelism.data_replicate=3 ranks_per_node=4",
    "parallelism=ddp parallelism.data_replicate=3 ranks_per_node=4",
    "parallelism=fsdp_hybrid parallelism.data_shard=2 parallelism.data_replicate=4 ranks_per_node=4",
    "parallelism=fsdp_hybrid parallelism.data_shard=2 parallelism.data_replicate=1 ranks_per_node=4",
    "parallelism=fsdp_hybrid parallelism.tensor=2 ranks_per_node=6 model.heads=12 model.kv_heads=4 nodes=3",
    "scaling.global_batch_size=8 job.micro_batch_size=3",
    "scaling=weak parallelism=tp scaling.sequences_per_rank=3 job.micro_batch_size=4",
    f"{PP8} job.micro_batch_size=8",
    f"{PP8} job.micro_batch_size=8 scaling=weak scaling.sequences_per_rank=4",
    f"{PP8} parallelism.schedule=Interleaved1F1B job.micro_batch_size=1 scaling.global_batch_size=9",
    f"{PP8} parallelism.schedule=Interleaved1F1B parallelism.stages_per_rank=2 job.micro_batch_size=4 scaling=weak "
    "scaling.sequences_per_rank=9",
    "job=finetune_lora data=docstrings job.lora.rank=0",
    "job=finetune_lora data=docstrings job.lora.targets=[] job.lora.dropout=1 job.lora.alpha=0",
    "job=finetune_lora data=docstrings job.lora.quantize_base=nf4 parallelism=tp",
    "job=finetune_lora data=docstrings job.lora.quantize_base=nf4 engine.compile=true",
    "job=finetune_lora data=docstrings job.lora.quantize_base=nf4 model.intermediate_size=1022",
    "engine.distributed_optimizer=true",
    "engine.gradients=bfloat16",
    "engine.overlap_communication=false",
    "engine.expert_dispatcher=deepep",
    "engine.update_in_backward=true",
    "engine.sums_in_products=true engine.compile=true",
    "engine.sums_in_products=true parallelism=single job.precision=bfloat16",
    "engine.sums_in_products=true parallelism=pp parallelism.strategy=single",
    "engine.update_in_backward=true parallelism=single job.micro_batch_size=2",
    f"{NEMO} model=qwen3_30b_a3b parallelism=ddp engine.expert_dispatcher=deepep job.precision=bfloat16",
    f"{NEMO} engine.gradients=float16",
    "parallelism=pp_fsdp parallelism.sharding=FULL_SHARD parallelism.schedule=ZBVZeroBubble engine.compile=true "
    "engine.activation_checkpointing=full",
    "model=mixtral_8x7b engine.compile=true",
    "engine.checkpointed_layers=1",
    "parallelism=pp engine.checkpointed_layers=99 engine.activation_checkpointing=selective",
    "parallelism=tp engine.compile=true engine.activation_checkpointing=selective",
    f"{H100} parallelism.context=2",
    "engine.weights=node",
    "engine.parameters=float16",
    "engine.parameters=bfloat16",
    f"{H100} parallelism=cp_fsdp job.batching=packed",
    f"{H100} parallelism=cp_fsdp model.sliding_window=256",
    f"{H100} parallelism=cp_fsdp model.attention_sinks=true",
    f"{H100} parallelism=cp_fsdp model.attention_softcap=50",
    "data=stdlib job=p_tuning job.batching=packed job.micro_batch_size=2",
    "engine.kernels=liger_or_torch model=pythia_14m",
    "engine.kernels=liger_or_torch parallelism=tp",
    "engine.kernels=liger_or_torch engine.compile=true",
    "engine.kernels=liger_or_torch engine.liger_kernels=[rope,rope]",
    "engine.kernels=liger",
    "parallelism=fsdp_full parallelism.bucket_mb=50",
    "cluster.gpu_power_limit_w=300 cluster.gpu_clock_mhz=1200",
    "cluster=xe9680_mi300x cluster.gpu_clock_mhz=1200",
    "gpu=h100_sxm nodes=2 cluster.gpu_clock_mhz=1200",
    "network=roce",
    "network.adapters=[mlx5_0]",
    f"{H100} network.adapters=[mlx5_0,mlx5_0]",
    f"{H100} network.adapters=[^mlx5]",
    "network.interface==eth0,eth1",
    "network.env='{A B: c}'",
    "network.env='{LD_PRELOAD: libnccl.so.2}'",
    f"{H100} network=tcp network.plugin=ofi",
    f"{H100} network=infiniband network.gid_index=3",
    f"{H100} network=roce network.gid_index=-1",
    "network.gpu_direct=true",
    f"{H100} network=tcp network.gpu_direct=true",
    f"{H100} network.gpu_direct=true network.env='{{NCCL_DEBUG: WARN}}'",
    "network=tcp cluster.env='{NCCL_NET: IB}'",
    "network=tcp network.env='{NCCL_NET: IB}'",
    "network=tcp cluster.env='{NCCL_DEBUG: WARN}'",
    "engine.profile.steps=[6,8]",
    "engine.profile.steps=[1]",
    "engine.profile.steps=[90]",
    "engine.profile.ranks=[5]",
    "engine.profile.steps=[6] engine.profile.program=nsys",
    "engine.profile.steps=[6] engine.profile.program=rocprof",
    f"{NEMO} parallelism=ddp engine.profile.steps=[6]",
    "engine.float8=true",
    "engine.float8=true engine.compile=true",
    f"{FLOAT8} model=tiny model.intermediate_size=680",
    f"{FLOAT8} model=mixtral_8x7b",
    f"{FLOAT8} parallelism=tp",
    FLOAT8.replace("cluster=xe9680_h100 ", ""),
    f"{FLOAT8} gpu=a100_sxm_80gb",
    "engine.float8_recipe=rowwise",
    "job.loss_band.reference=/nowhere",
    "job.loss_band.percent=2",
    f"{FLOAT8} engine.float8_recipe=nvfp4",
    f"{FLOAT8} engine.float8_recipe=mxfp8",
    f"{NEMO} engine.float8=true engine.float8_recipe=mxfp8 job.precision=bfloat16 gpu=mi355x",
    f"{NEMO} engine.float8=true job.precision=float32",
    f"{NEMO} engine.float8=true job.precision=bfloat16 job.micro_batch_size=1 job.sequence_length=1001",
    f"{NEMO} parallelism=tp_fsdp",
    f"{NEMO} parallelism=pp parallelism.schedule=GPipe",
    f"{NEMO} parallelism=pp parallelism.schedule=Interleaved1F1B parallelism.stages_per_rank=2 "
    "scaling.global_batch_size=12",
    f"{NEMO} parallelism=tp parallelism.loss_parallel=false",
    "engine=nemo parallelism=tp parallelism.sequence_parallel=true",
    f"{NEMO} engine.compile=true",
    f"{NEMO} engine.optimizer_loop=fused job.batching=packed",
    f"{NEMO} engine.parameters=bfloat16",
    f"{NEMO} job.precision=float16",
    f"{NEMO} model=pythia_14m",
    f"{NEMO} model=mixtral_8x7b parallelism=ddp parallelism.expert=3",
    f"{NEMO} model=qwen3_30b_a3b parallelism=ddp parallelism.context=2 parallelism.expert=2",
    f"{NEMO} model=qwen3_30b_a3b parallelism=tp parallelism.sequence_parallel=false",
    f"{NEMO} model=gpt_oss_20b parallelism=tp",
    f"{NEMO} model=gpt_oss_20b parallelism=ddp parallelism.context=2",
    f"{NEMO} model=mixtral_8x7b job=finetune_lora data=docstrings",
    f"{NEMO} model=mixtral_8x7b job=finetune_full data=docstrings job.expert_balance_loss=0.01",
    f"{NEMO} model=gemma3_4b",
    f"{NEMO} model.attention_softcap=50",
    f"{NEMO} model=olmo2_7b",
    f"{NEMO} {LITE}",
    f"{FINETUNE} {LITE}",
    f"{ZERO}3 {LITE}",
    f"{NEMO} parallelism=tp job=finetune_lora data=docstrings job.lora.rank=5",
    f"{NEMO} job=finetune_lora data=docstrings job.lora.targets=[query,mlp]",
    f"{NEMO} job=finetune_lora data=docstrings job.lora.quantize_base=nf4",
    f"{FINETUNE} ranks_per_node=2 parallelism=tp parallelism.tensor=2",
    f"{FINETUNE} ranks_per_node=2 parallelism=fsdp_no_shard",
    f"{PRETRAIN} ranks_per_node=4 parallelism=fsdp_hybrid parallelism.data_shard=2",
    f"{PRETRAIN} nodes=2 ranks_per_node=2 parallelism=fsdp_hybrid",
    f"{LORA} data=stdlib",
    f"{LORA} job.lora.alpha=1.5",
    f"{LORA} job.lora.quantize_base=nf4",
    f"{FINETUNE} job.clip_norm=1.0",
    f"{PRETRAIN} job.clip_norm=null",
    f"{FINETUNE} job.min_learning_rate=1e-6",
    f"{FINETUNE} job.warmup_steps=0",
    f"{FINETUNE} engine.activation_checkpointing=full",
    f"{FINETUNE} engine.compile=true",
    f"{FINETUNE} model.tie_embeddings=true",
    f"{FINETUNE} job.checkpoint_every_steps=2",
    f"{FINETUNE} job.precision=float16",
    f"{FINETUNE} engine.distributed_optimizer=true",
    H100.replace("llama2_7b", "llama31_405b"),
    f"{H100} parallelism=fsdp_full job.sequence_length=4096 job.micro_batch_size=16 scaling.global_batch_size=128",
    "experiment=llama2_7b_nemo rehearsal=cpu cluster=xe9680_h100",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 contest.nodes=0",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 contest.loss_tolerance=-1",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 contest.target_loss=3",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 contest.runs=2 contest.dropped=1",
    "cluster=xe9680_h100 cluster.service_units_per_node_hour=null budget.service_units=100",
    "campaign.minimum_effect=2 campaign.maximum_pairs=1",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 job.steps=10 job.epochs=null",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 data.held_out_samples=8",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 nodes=1 data.max_samples=8",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 wall_time_min=300",
    "experiment=apac_hpc_ai_2024 cluster=xe9680_h100 engine=nemo job=finetune_lora parallelism=ddp "
    "contest.sequence_length=512 job.sequence_length=512",
    "engine=deepspeed data=docstrings parallelism=fsdp_full",
    "parallelism=zero2",
    "engine=nemo parallelism=zero3",
    f"{FINETUNE} parallelism=zero3 ranks_per_node=2 engine.activation_checkpointing=full",
    f"{ZERO}3 parallelism=tp",
    f"{ZERO}1 parallelism=ddp job.precision=bfloat16",
    f"{ZERO}1 job.precision=float16",
    f"{ZERO}3 engine.deepspeed.reduce_bucket_size=0",
    f"{ZERO}2 engine.deepspeed.offload_param=cpu",
    f"{ZERO}3 engine.deepspeed.offload_optimizer=nvme",
    f"{ZERO}3 engine.deepspeed.nvme_path=/disk",
    f"{ZERO}3 engine.compile=true",
    f"{ZERO}3 job=finetune_lora",
    f"{ZERO}3 engine.distributed_optimizer=true",
    f"{ZERO}3 model=mixtral_8x7b",
    f"{ZERO}3 model.tie_embeddings=true",
    f"{ZERO}3 model.attention_sinks=true",
    FINETUNE.replace("finetune_full", "p_tuning"),
    "data=docstrings job=prompt_tuning job.prompt_tuning.encoder_hidden_size=64",
    "cluster.calibration=/nowhere.yaml",
    "job=serve",
    "engine=vllm",
    f"{SERVE} serving.requests=0 serving.warmup_requests=-1 serving.requests_per_s=0",
    f"{SERVE} serving.replicas=3",
    f"{SERVE} parallelism=tp nodes=2 ranks_per_node=1",
    f"{SERVE} parallelism=fsdp_full",
    f"{SERVE} parallelism=pp ranks_per_node=4 nodes=3 parallelism.pipeline=3 model.layers=12",
    f"{SERVE} parallelism=pp parallelism.schedule=Interleaved1F1B parallelism.stage_split=balanced",
    f"{SERVE} parallelism=pp engine.server.command=[x]",
    f"{SERVE} serving.balancer=none",
    f"{SERVE} serving.client=ab",
    f"{SERVE} serving.client=ab serving.prompts=1 serving.requests=3",
    f"{SERVE} job.sequence_length=300",
    f"{SERVE} engine.server.command=[]",
    f"{SERVE} engine=litgpt_serve serving.client=ab serving.prompts=1 model.attention_sinks=true",
    f"{SERVE} job.export=true",
    "job=checkpoint_io job.train=true",
    "job=fio engine=litgpt",
    "job=fio job.export=true",
    "job=checkpoint_io storage.checkpoint.repeats=0 storage.checkpoint.fraction=2",
    "job=data_read storage.data.batch_size=0 storage.data.step_s=-1",
    "job=data_read storage.data.files=3",
    "job=data_read storage.data.samples=60 storage.data.workers=1",
    "job=checkpoint_io model=llama3_8b cluster.memory_gb_per_node=20",
    "job=image_train engine=litgpt",
    "job=image_train parallelism=fsdp_full",
    "job=image_train job.export=true",
    "job=image_train images.classes=0 images.size=8",
    "job=image_train images.shards=1",
    "job=image_train gpu=a100_sxm_40gb job.micro_batch_size=1024 scaling.global_batch_size=2048",
    "job=image_train images.count=10",
    "job=image_train images.validate_every_steps=5",
    "job=image_train job.steps=null job.epochs=1",
    f"{SERVE} serving.search.most_concurrency=8",
    f"{SERVE} serving.search.most_concurrency=2 serving.limits.request_latency_s=1",
    "stages=all_and_serve data.held_out_samples=8",
    f"{STUDY} report.quantity=[useful_time,total_time_s]",
    f"{STUDY} report.quantity=[] report.rows=[]",
    f"{STUDY} report.rows=[model.name,node]",
    "experiment=resnet50_powerscale images.path=/mnt report.side_files=[../filer,b.csv]",
    f"{STUDY} report.columns=[network]",
    f"{STUDY} report.units='{{total_time_s: fortnight}}'",
    f"{STUDY} report.units='{{useful_time: min}}'",
)
# No override corrects what these refuse; of a program, its file does (tests/jobs/work/program).
WITHOUT = {config_holds_no_secret, sbatch_variables.agree_with_keys, *program_rules.VALUES}
DOORS: list[Engine | Work] = [*map(engine.loaded, EngineKind), *map(work.loaded, work.KINDS.values())]
OF_DOORS = [rule for door in DOORS for rule in (*door.value_rules(), *door.layout_rules())]
GENERAL = {rule for rules in but_memory(run_of({})) for rule in rules}
RULES = {*GENERAL, *OF_DOORS, *memory.RULES} - WITHOUT


def typed(text: str) -> Overrides:
    """Overrides as a user types them; of two of a key the last one holds."""
    return dict(word.split("=", 1) for word in shlex.split(text))


def refused(run: Run) -> dict[Rule, list[str]]:
    """The refusals that a user reads, by rule: those of the first group that has any."""
    for rules in (*but_memory(run), memory.RULES):
        if found := {rule: lines for rule in rules if (lines := list[str](broken([rule], run)))}:
            return found
    return {}


def shape(refusal: str) -> str:
    """A refusal without its numbers and names."""
    return re.sub(r"(?<==)[^ ,.;)]+|\d+", "#", refusal)[:50]


def followed(overrides: Overrides) -> Iterator[tuple[Rule, str, Overrides]]:
    """Every suggestion on some overrides, with the rule and its refusal."""
    for rule, refusals in refused(run_of(overrides)).items():
        for refusal in refusals:
            found = suggestions(refusal)
            assert found, f"suggests nothing to type: {refusal}"
            yield from ((rule, refusal, suggestion) for suggestion in found)


def each_suggestion_ends_its_refusal(overrides: Overrides) -> set[Rule]:
    met = set()
    for rule, refusal, suggestion in followed(overrides):
        left = refused(run_of(overrides | suggestion)).get(rule, [])
        assert shape(refusal) not in map(shape, left), f"{refusal}\n{suggestion} leads to\n{left}"
        met.add(rule)
    return met


def first_suggestions_lead_to_a_legal_run(overrides: Overrides) -> None:
    read = []
    for _ in range(12):
        if not (reasons := problems(run_of(overrides))):
            return
        first = suggestions(reasons[0])[0]
        read.append(f"{reasons[0]} -> {first}")
        overrides = overrides | first
    pytest.fail("no end of refusals:\n" + "\n".join(read))


def test_every_rule_suggests_what_ends_its_refusal() -> None:
    met = set()
    for text in ILLEGAL:
        found = each_suggestion_ends_its_refusal(typed(text))
        assert found, f"legal: {text}"
        met |= found
    assert met == RULES


@pytest.mark.parametrize("text", ILLEGAL)
def test_whoever_types_the_first_suggestion_each_time_ends_at_a_run_that_can_run(text: str) -> None:
    first_suggestions_lead_to_a_legal_run(typed(text))


@pytest.mark.parametrize(
    ("number", "unit", "most", "words"),
    [(63, 6, math.inf, "60 or 66"), (5, 6, math.inf, "6"), (512, 6, 512, "510"), (60, 6, math.inf, "60 or 66")],
)
def test_multiples_lie_on_both_sides_of_a_number_and_below_the_limit(
    number: int, unit: int, most: float, words: str
) -> None:
    assert multiples_near(number, unit, most) == words


@pytest.mark.parametrize(
    ("schedule", "counts"),
    [
        ("GPipe", {1, 2, 3, 4, 5, 6, 7, 8, 9}),
        ("LoopedBFS", {1, 2, 3, 4, 5, 6, 7, 8, 9}),
        ("1F1B", {4, 5, 6, 7, 8, 9}),
        ("ZBVZeroBubble", {4, 5, 6, 7, 8, 9}),
        # In count // 4 equal rounds.
        ("Interleaved1F1B", {4, 5, 6, 7, 8}),
        ("InterleavedZeroBubble", {4, 5, 6, 7, 8}),
    ],
)
def test_a_pipeline_of_four_takes_these_numbers_of_micro_batches(schedule: str, counts: set[int]) -> None:
    point = typed(f"{PP8} job.micro_batch_size=2 parallelism.schedule={schedule}")
    taken = {n for n in range(1, 10) if not problems(run_of(point | {"scaling.global_batch_size": str(2 * n)}))}
    assert taken == counts


@given(st.lists(st.sampled_from(ILLEGAL), min_size=2, max_size=3).map(" ".join).map(typed))
def test_several_mistakes_are_led_out_of_too(overrides: Overrides) -> None:
    each_suggestion_ends_its_refusal(overrides)
    # A contest fixes values that other rules may exclude.
    if "experiment" not in overrides:
        first_suggestions_lead_to_a_legal_run(overrides)


@pytest.mark.parametrize("text", [f"{NEMO} parallelism=tp_fsdp", f"{PP8} scaling=weak", f"{LORA} data=stdlib nodes=2"])
def test_these_runs_are_those_of_composition(text: str) -> None:
    run = run_of(typed(text))
    composed_one = composed(*(f"{key}={value}" for key, value in typed(text).items()))
    assert replace(composed_one, name=None, sweep=None) == replace(run, name=None, sweep=None)
