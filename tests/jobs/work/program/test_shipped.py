"""The programs of conf/program: each is planned, and those that packages bring run for real on CPU ranks."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from analysis.load.run_directory import read_run
from analysis.report.report import report
from jobs.rundir import RunDir
from jobs.work.work import work_of
from tests.support.composing import CONF, one, options
from tests.support.real_run import FORK, make_run, printed, rank, train
from tests.support.required import skip_or_fail
from tests.support.serving import model_directory, vllm_python, with_random_weights
from tests.support.waiting import wait_until

MOST_LINES = 60
TRAINER = """\
import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(arguments.seed)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
))
rows = torch.randint(0, 320, (64, 32), generator=torch.Generator().manual_seed(1))
Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows]).train(
    resume_from_checkpoint=arguments.resume_from_checkpoint
)
"""


@pytest.mark.parametrize("name", options("program"))
def test_every_shipped_program_is_a_short_file_that_is_planned(name: str) -> None:
    text = (CONF / f"program/{name}.yaml").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    run = one("job=program", f"program={name}", "nodes=2").run
    assert run.program is not None
    assert run.program.about
    assert set(run.program.params) == set(run.program.parameters), "each parameter has its meaning"
    assert all(text for _, text in work_of(run).notes(run))


def prepare_solver(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test without an MPI program of Debian's; let Open MPI start it for root."""
    if not (shutil.which(program) and shutil.which("mpirun")):
        skip_or_fail(f"{program} and mpirun are not installed: tests/install.sh solvers")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")


def started(run: RunDir, ranks: int) -> None:
    assert train(run) == [0] * ranks, printed(run)
    run.plan.write_text("{}")


@pytest.mark.long
def test_vllm_serves_its_own_load_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_random_weights(model_directory(tmp_path / "model"))
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}.items():
        monkeypatch.setenv(name, value)
    run = make_run(
        tmp_path, "job=program", "program=vllm", "ranks_per_node=1", f"program.params.python={vllm_python()}",
        f"program.params.model={model}", "program.params.requests=8", "program.params.concurrency=2",
        "program.params.input_tokens=16", "program.params.output_tokens=4",
        "program.params.server_options=--enforce-eager --max-model-len 128 --gpu-memory-utilization 0.2",
        "program.params.load_options=--goodput ttft:100000 tpot:100000", small=False,
    )  # fmt: skip
    started(run, 1)
    found = read_run(run.path)
    assert found.used, found.reason
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["requests_completed"] == 8
    assert values["output_tokens_per_s"] == pytest.approx(4 * values["requests_per_s"], rel=0.01)
    assert values["good_request_share"] == pytest.approx(1)
    assert values["server_startup_time_s"] > 0


@pytest.mark.long
def test_lammps_scales_and_its_gates_reject_lists_that_are_built_too_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_solver("lmp", monkeypatch)
    chosen = ("job=program", "program=lammps", "program.params.n=8", "program.params.steps=200")
    for ranks in (1, 2):
        for every in (20, 100):
            run = make_run(
                tmp_path, *chosen, "program.params.mpirun=mpirun --oversubscribe", f"ranks_per_node={ranks}",
                f"program.params.every={every}", f"name=r{ranks}-{every}", "program.gates.kept.at_least=-4.625",
                small=False,
            )  # fmt: skip
            started(run, ranks)
            found = read_run(run.path)
            assert found.used is (every == 20), found.reason
            if every == 100:
                assert "it misses the gate kept: energy_lowest is -4.6" in str(found.reason)
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(r"CPU: lammps .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page)


@pytest.mark.long
def test_hpc_challenge_solves_on_one_and_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_solver("hpcc", monkeypatch)
    chosen = ("job=program", "program=hpcc", "program.params.n=200", "program.params.mpirun=mpirun --oversubscribe")
    for ranks in (1, 2):
        for block in (32, 64):
            run = make_run(
                tmp_path, *chosen, f"ranks_per_node={ranks}", f"program.params.nb={block}", f"name=r{ranks}-{block}",
                small=False,
            )  # fmt: skip
            started(run, ranks)
            found = read_run(run.path)
            assert found.used, found.reason
            values = {metric.name: value for metric, value in found.values.items()}
            assert values["success"] == 1
            assert 0 < values["hpl_residual"] < 16
            assert ("ring_bytes_per_s" in values) is (ranks == 2), "one rank has no ring"
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert re.search(
        r"CPU: hpcc with nb=(32|64) .* from 1 to 2 ranks \(.* % efficiency, strong scaling, one run each", page
    )
    assert "GFLOP/s (hpl flops)" in page


def trained(where: Path, ranks: int) -> RunDir:
    """A run of Hugging Face's Trainer on CPU ranks."""
    script = where / "train.py"
    script.write_text(TRAINER)
    return make_run(
        where, "job=program", "program=hf_trainer", f"program.params.script={script}", f"ranks_per_node={ranks}",
        f"program.params.python={sys.executable}", "program.params.backend=gloo", "program.params.use_cpu=true",
        "job.micro_batch_size=2", "program.params.max_steps=12", "program.params.save_steps=4", small=False,
    )  # fmt: skip


@pytest.mark.long
def test_two_ranks_of_hugging_faces_trainer_train_together_and_its_log_is_the_result(tmp_path: Path) -> None:
    run = trained(tmp_path, ranks=2)
    started(run, 2)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.plan["global_batch_size"] == 4
    assert len(found.losses) == 12
    apart = run.program_log("train", 0)
    apart.write_text("... but parallel_mode != ParallelMode.DISTRIBUTED. In order\n" + apart.read_text())
    assert read_run(run.path).state == "gate missed", "ranks that train alone are no result"


@pytest.mark.long
def test_a_script_of_hugging_face_is_killed_and_continues_from_its_checkpoint(tmp_path: Path) -> None:
    # One rank: this version's trainer cannot load a checkpoint of several CPU ranks.
    run = trained(tmp_path, ranks=1)
    first = FORK.Process(target=rank, args=(run.path, 0, 1, "first"))
    first.start()
    wait_until((run.work / "output/checkpoint-4/trainer_state.json").exists)
    first.kill()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    started(run, 1)
    assert "step train continues from" in printed(run)
    found = read_run(run.path)
    # The trainer divides by all steps, those before the interruption included: its rates are no result.
    assert found.reason == "program.log: it reports neither step time nor throughput"
    assert found.attempts == 2
