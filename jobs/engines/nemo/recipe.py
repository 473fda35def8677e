"""A run as a NeMo recipe: llm.pretrain with model, trainer and optimizer, which can be edited and printed.

The workload adds data, log and record. Adapters are part of the model and not llm.finetune's callback, which would
build the optimizer only after the first step has started: all jobs have one order of events.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import nemo.lightning as nl
import nemo_run
import torch
import torch.nn.functional as F
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.utils import get_te_version
from nemo.collections import llm
from nemo.collections.llm.fn import walk
from nemo.collections.llm.gpt.model.base import HAVE_TE
from nemo.collections.llm.gpt.model.llama import apply_rope_scaling
from nemo.collections.llm.recipes.tp_overlap_configs import userbuffers
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

from jobs.engines.native.weights import values_of
from jobs.engines.nemo.engine import ENGINE
from jobs.engines.nemo.float8 import float8
from jobs.engines.nemo.rules import ADAPTED
from jobs.engines.nemo.weights import load_sharded
from jobs.errors import ConfigError
from jobs.layout import pipeline_stages_per_rank, sequence_parallel
from jobs.plan.pipeline_stages import layer_counts
from jobs.schema import ActivationCheckpointing, ExpertDispatcher, Mlp, Model, Precision, Run

RECOMPUTE: dict[ActivationCheckpointing, dict[str, str | int]] = {
    ActivationCheckpointing.none: {},
    ActivationCheckpointing.selective: {"recompute_granularity": "selective"},
    ActivationCheckpointing.full: {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
DTYPES = {Precision.float32: torch.float32, Precision.bfloat16: torch.bfloat16}


@dataclass
class ModelConfig(llm.GPTConfig):  # type: ignore[misc]  # NeMo has no types
    """NeMo's model, initialised with the run's first weights."""

    init_from: str | None = None
    init_seed: int = 0
    rope_scaling: dict[str, float | None] | None = None
    """Keywords of NeMo's apply_rope_scaling (Llama 3.1)."""
    yarn_rotary_scaling_factor: float = 1.0
    yarn_original_max_position_embeddings: int = 4096
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_correction_range_round_to_int: bool = True
    yarn_mscale: float = 1.0
    yarn_mscale_all_dim: float = 0.0
    """Megatron's settings of YaRN (position_embedding_type="yarn"), under the names that it looks for."""
    lora: llm.peft.LoRA | None = None

    def configure_model(self, *arguments: object, **keywords: object) -> GPTModel:
        """Return this rank's part of the model, or one virtual pipeline stage of it, with its weights."""
        model = super().configure_model(*arguments, **keywords)
        if self.rope_scaling:
            model.rotary_pos_emb.inv_freq = apply_rope_scaling(model.rotary_pos_emb.inv_freq, **self.rope_scaling)
        if self.lora:
            model.requires_grad_(False)
            walk(model, self.lora.transform)
            if self.recompute_granularity == "full" and model.pre_process:
                # Checkpointed layers get gradients only if their input requires one; a frozen embedding's does not.
                model.embedding.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
        load_sharded(model, values_of(self.init_from, self.init_seed), self.init_seed)
        return model


def recipe(run: Run, steps: int) -> nemo_run.Partial:
    """Return the recipe for `steps` optimizer steps; the data decides the first one."""
    return nemo_run.Partial(
        llm.pretrain,
        model=nemo_run.Config(llm.GPTModel, config=model_config(run)),
        trainer=nemo_run.Config(
            nl.Trainer,
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            num_nodes=run.nodes,
            devices=run.ranks_per_node,
            max_steps=steps,
            strategy=strategy(run),
            plugins=[precision(run), nemo_run.Config(TorchElasticEnvironment)],
            callbacks=[overlaps(run)] if torch.cuda.is_available() else [],
            limit_val_batches=0,
            num_sanity_val_steps=0,
            # The workload writes the record and the checkpoints, and prints progress.
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            use_distributed_sampler=False,
        ),
        optim=nemo_run.Config(
            nl.MegatronOptimizerModule, config=optimizer(run), no_weight_decay_cond=decays_every_parameter
        ),
    )


def model_config(run: Run) -> nemo_run.Config:
    """Return the architecture and activation checkpointing in Megatron's terms."""
    model, dtype = run.model, DTYPES[run.job.precision]
    gated = model.mlp is not Mlp.GptNeoxMLP
    on_gpu = torch.cuda.is_available()
    fused = on_gpu and HAVE_TE
    return nemo_run.Config(
        ModelConfig,
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_size,
        vocab_size=model.vocab_size,
        seq_length=run.job.sequence_length,
        normalization=model.norm.name,
        layernorm_epsilon=model.norm_eps,
        add_bias_linear=model.bias,
        add_qkv_bias=model.bias or model.attention_bias,
        gated_linear_unit=gated,
        activation_func=activation(model),
        rotary_base=model.rope_base,
        rotary_percent=model.rope_fraction,
        **positions(run),
        qk_layernorm=model.norm_qk,
        # Megatron counts the keys to the left of a token, and `sliding_window` the token too.
        window_size=model.sliding_window and (model.sliding_window - 1, 0),
        window_attn_skip_freq=model.full_attention_every or None,
        softmax_type="learnable" if model.attention_sinks else "vanilla",
        **(mixture(run, fused=fused) if model.experts else {}),
        share_embeddings_and_output_weights=model.tie_embeddings,
        # LitGPT's model has no dropout.
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # The loss of a step is the mean over all labels of its global batch, as in the native engine.
        calculate_per_token_loss=True,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # With virtual pipeline stages, two ranks are each other's next and previous, which batched messages mix up.
        overlap_p2p_comm=ENGINE.overlap(run).pipeline,
        batch_p2p_comm=pipeline_stages_per_rank(run) == 1,
        **RECOMPUTE[run.engine.activation_checkpointing],
        # Fused kernels come from Transformer Engine, on GPUs. Its fused GELU is the tanh approximation: not used.
        use_cpu_initialization=not on_gpu,
        bias_activation_fusion=fused and gated,
        # Megatron's grouped experts add their biases themselves.
        bias_dropout_fusion=fused and not (model.experts and model.bias),
        masked_softmax_fusion=fused,
        persist_layer_norm=fused,
        # The fused kernel leaves YaRN's factor of cosines and sines out.
        apply_rope_fusion=fused and (model.rope_scaling is None or model.rope_scaling.attention_factor == 1),
        cross_entropy_loss_fusion=fused,
        deallocate_pipeline_outputs=on_gpu,
        init_from=run.job.init_from,
        init_seed=run.job.seed,
        lora=run.job.lora
        and nemo_run.Config(
            llm.peft.LoRA,
            target_modules=[name for name, targets in ADAPTED.items() if set(targets) <= set(run.job.lora.targets)],
            dim=run.job.lora.rank,
            alpha=run.job.lora.alpha,
            dropout=run.job.lora.dropout,
        ),
    )


def activation(model: Model) -> Callable[..., torch.Tensor]:
    """Return the activation function: of experts with limited SwiGLU g sigmoid(1.702 g)."""
    if model.swiglu_limit is not None:
        limited: Callable[..., torch.Tensor] = quick_gelu
        return limited
    return F.gelu if model.mlp is Mlp.GptNeoxMLP else F.silu


def positions(run: Run) -> dict[str, Any]:
    """Return the kind of rotary positions: plain, Llama 3.1's scaling by NeMo's names, or YaRN by Megatron's."""
    scaling = run.model.rope_scaling
    if scaling is None:
        return {"position_embedding_type": "rope"}
    if not scaling.is_yarn:
        keywords = {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "old_context_len": scaling.original_max_sequence_length,
        }
        return {"position_embedding_type": "rope", "rope_scaling": keywords}
    # Megatron multiplies cosines and sines by (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1), and by
    # 1 where the factor is at most 1.
    mscale = (scaling.attention_factor - 1) / (0.1 * math.log(scaling.factor)) if scaling.factor > 1 else 0.0
    return {
        "position_embedding_type": "yarn",
        "yarn_rotary_scaling_factor": scaling.factor,
        "yarn_original_max_position_embeddings": scaling.original_max_sequence_length,
        "yarn_beta_fast": scaling.beta_fast,
        "yarn_beta_slow": scaling.beta_slow,
        "yarn_correction_range_round_to_int": scaling.round_limits,
        "yarn_mscale": mscale,
    }


def mixture(run: Run, *, fused: bool) -> dict[str, Any]:
    """Return the settings of experts: no token is dropped, and softmax is over the products of the chosen ones."""
    model, weight = run.model, run.job.expert_balance_loss
    return {
        "num_moe_experts": model.experts,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.inner_size,
        **dispatcher(run),
        # Of each sequence, as the native engine's.
        "moe_router_load_balancing_type": "seq_aux_loss" if weight else "none",
        "moe_aux_loss_coeff": weight,
        "moe_grouped_gemm": fused,
        "moe_permute_fusion": fused,
        "activation_func_clamp_value": model.swiglu_limit,
        "glu_linear_offset": 0.0 if model.swiglu_limit is None else 1.0,
    }


def dispatcher(run: Run) -> dict[str, Any]:
    """Return the way of tokens to experts; raise ConfigError without its package."""
    if run.engine.expert_dispatcher is ExpertDispatcher.all_to_all:
        return {"moe_token_dispatcher_type": "alltoall"}
    if find_spec("deep_ep") is None:
        raise ConfigError(
            "engine.expert_dispatcher=deepep needs the package deep_ep on the nodes, and Python has none here. Use "
            "NVIDIA's NeMo container (cluster.container), or set engine.expert_dispatcher=all_to_all."
        )
    # It takes shares of experts in float32 only.
    return {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True, "moe_router_dtype": "fp32"}


def strategy(run: Run) -> nemo_run.Config:
    """Return Megatron's parallelism; its order of ranks is that of jobs.layout (tp fastest, pp slowest)."""
    p, stages = run.parallelism, pipeline_stages_per_rank(run)
    return nemo_run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=p.tensor,
        pipeline_model_parallel_size=p.pipeline,
        virtual_pipeline_model_parallel_size=stages if stages > 1 else None,
        pipeline_model_parallel_layout=unequal_stages(run),
        context_parallel_size=p.context,
        expert_model_parallel_size=p.expert,
        sequence_parallel=sequence_parallel(run),
        pipeline_dtype=DTYPES[run.job.precision],
        ddp=nemo_run.Config(
            DistributedDataParallelConfig,
            use_distributed_optimizer=run.engine.distributed_optimizer,
            grad_reduce_in_fp32=run.engine.gradients is Precision.float32,
            # As in NeMo's own recipes: collectives of gradients and weights during the computation.
            # While backward goes on.
            overlap_grad_reduce=ENGINE.overlap(run).gradients,
            overlap_param_gather=ENGINE.overlap(run).weights,
        ),
        ckpt_async_save=False,
        # Any layout can load a checkpoint.
        ckpt_optim_fully_reshardable=True,
        replace_progress_bar=False,
    )


def unequal_stages(run: Run) -> list[list[str]] | None:
    """Return the kinds of layers of each pipeline stage by Megatron's names, first to last; None if all are equal."""
    counts = layer_counts(run)
    if len(set(counts)) == 1:
        return None
    layout = [["decoder"] * count for count in counts]
    return [["embedding", *layout[0]], *layout[1:-1], [*layout[-1], "loss"]]


def overlaps(run: Run) -> nemo_run.Config:
    """Return NeMo's callback that overlaps communication with computation, set as NVIDIA's own recipes set it.

    TP overlaps by buffers of Transformer Engine, with NVIDIA's configuration for this shape if there is one.
    """
    job, p, kind = run.job, run.parallelism, "b200" if torch.cuda.get_device_capability() >= (10, 0) else "h100"
    shape = f"h{run.model.hidden_size}_tp{p.tensor}{f'_cp{p.context}' if p.context > 1 else ''}"
    tuned = f"userbuffers_bf16_{kind}_{shape}_mbs{job.micro_batch_size}_seqlen{job.sequence_length}"
    return nemo_run.Config(
        MegatronCommOverlapCallback,
        tp_comm_overlap=ENGINE.overlap(run).tensor > 0,
        tp_comm_overlap_cfg=getattr(userbuffers, tuned, None),
    )


def precision(run: Run) -> nemo_run.Config:
    """Return Megatron's precision: weights in the dtype of arithmetic, a float32 copy in the optimizer."""
    dtype = DTYPES[run.job.precision]
    return nemo_run.Config(
        nl.MegatronMixedPrecision,
        precision="32" if dtype is torch.float32 else "bf16-mixed",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        grad_reduce_in_fp32=run.engine.gradients is Precision.float32,
        **float8(run, str(get_te_version()) if HAVE_TE else None),
    )


def optimizer(run: Run) -> nemo_run.Config:
    """Return AdamW with the native engine's settings; the record sets the learning rate of each step."""
    job, dtype = run.job, DTYPES[run.job.precision]
    return nemo_run.Config(
        OptimizerConfig,
        optimizer="adam",
        lr=job.learning_rate,
        weight_decay=job.weight_decay,
        adam_beta1=job.beta1,
        adam_beta2=job.beta2,
        # Megatron computes the norm only if it clips.
        clip_grad=float("inf") if job.clip_norm is None else job.clip_norm,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=run.engine.distributed_optimizer,
    )


def decays_every_parameter(_name: str, _parameter: torch.nn.Parameter) -> bool:
    """Return False: Megatron's condition for parameters without weight decay."""
    return False
