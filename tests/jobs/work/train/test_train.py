"""Training: every parallelism computes what one process computes, and a run survives being stopped."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.tokenizer import Tokenizer
from litgpt.utils import check_valid_checkpoint_dir
from torch.nn.parallel import DistributedDataParallel

from jobs.metrics import ATTEMPT_METRICS, COLLECTIVE_BYTES, REGISTRY, STEP_METRICS
from jobs.plan.cost import parameters
from jobs.rundir import load_run
from jobs.runtime.machine import process_start
from tests.support.real_run import events, losses, make_run, printed, steps, train
from tests.support.training import assert_equal, interrupted, long, mean_loss
from tests.support.waiting import limit_s

PARALLEL = ("ddp", "fsdp_full", "fsdp_grad_op", "fsdp_no_shard", "fsdp_hybrid")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Return the steps of one process with global batch 8, which every layout must reproduce."""
    run = make_run(tmp_path_factory.mktemp("reference"), "parallelism=single", "ranks_per_node=1")
    assert train(run) == [0], printed(run)
    return steps(run)


def on(ranks: int) -> list[str]:
    """Return overrides for a number of ranks; four ranks are two emulated nodes."""
    return ["nodes=2", "ranks_per_node=2"] if ranks == 4 else ["nodes=1", f"ranks_per_node={ranks}"]


def test_training_changes_the_loss(reference: list[dict[str, float]]) -> None:
    assert len({round(row["loss"], 4) for row in reference}) == 6
    assert reference[-1]["loss"] < reference[0]["loss"]


@pytest.mark.long  # test_customizations.py holds in CI that products compute the same
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("parallelism", PARALLEL)
def test_losses_equal_one_process(
    parallelism: str, ranks: int, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, f"parallelism={parallelism}", *on(ranks))
    assert train(run) == [0] * ranks, printed(run)
    assert_equal(steps(run), reference)


@pytest.mark.parametrize("parallelism", ["single", "ddp", *map(long, PARALLEL[1:])])
def test_accumulation_and_micro_batch_size_do_not_change_the_losses(
    parallelism: str, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    ranks = 1 if parallelism == "single" else 2
    run = make_run(tmp_path, f"parallelism={parallelism}", *on(ranks), "job.micro_batch_size=2")
    assert train(run) == [0] * ranks, printed(run)
    assert_equal(steps(run), reference)


@pytest.mark.parametrize("parallelism", ["single", long("ddp"), "fsdp_full", long("fsdp_hybrid")])
def test_bfloat16_trains_close_to_float32_but_not_equal(
    parallelism: str, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    ranks = {"single": 1, "fsdp_hybrid": 4}.get(parallelism, 2)
    run = make_run(tmp_path, f"parallelism={parallelism}", *on(ranks), "job.precision=bfloat16")
    assert train(run) == [0] * ranks, printed(run)
    differences = [abs(row["loss"] - expected["loss"]) for row, expected in zip(steps(run), reference, strict=True)]
    assert 1e-5 < max(differences) < 0.05
    if parallelism == "fsdp_full":
        # Gradients are summed over ranks in float32, in each of 4 micro-batches.
        (layout,) = events(run, "layout")
        collectives = layout["collectives"]
        assert isinstance(collectives, list)
        sent = {each["collective"]: each[COLLECTIVE_BYTES.name] for each in collectives}
        assert sent["reduce_scatter"] == 4 * 4 * parameters(load_run(run.config).model)


@pytest.mark.parametrize("parallelism", ["fsdp_full", "ddp", long("fsdp_hybrid"), long("fsdp_grad_op")])
def test_gradients_sent_in_bfloat16_take_half_of_the_bytes(
    parallelism: str, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    ranks = on(4 if parallelism == "fsdp_hybrid" else 2)
    given = (f"parallelism={parallelism}", *ranks, "job.precision=bfloat16")
    sent: list[dict[str, float]] = []
    for kind in ("float32", "bfloat16"):
        run = make_run(tmp_path, f"name={kind}", *given, f"engine.gradients={kind}")
        assert set(train(run)) == {0}, printed(run)
        assert losses(run) == pytest.approx([row["loss"] for row in reference], abs=0.05)
        (layout,) = events(run, "layout")
        collectives = layout["collectives"]
        assert isinstance(collectives, list)
        reduced = [each for each in collectives if each["collective"] in {"reduce_scatter", "all_reduce"}]
        sent.append({f"{each['axis']} {each['collective']}": each[COLLECTIVE_BYTES.name] for each in reduced})
    for where, wide in sent[0].items():
        # Loss, norm and what ranks agree on are numbers of 4 or 8 bytes.
        assert sent[1][where] == pytest.approx(wide / 2 if wide > 1000 else wide, rel=0.01), where


def test_the_learning_rate_warms_up_and_follows_a_cosine_to_its_minimum(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "job.steps=4", "job.warmup_steps=2",
                   "job.learning_rate=1e-3", "job.min_learning_rate=1e-4")  # fmt: skip
    assert train(run) == [0], printed(run)
    assert [row["learning_rate"] for row in steps(run)] == pytest.approx([5e-4, 1e-3, 5.5e-4, 1e-4])


def test_clipping_bounds_the_update_and_reports_the_norm_before_it(tmp_path: Path) -> None:
    def run(name: str, *more: str) -> list[dict[str, float]]:
        made = make_run(tmp_path, f"name={name}", "parallelism=ddp", *more)
        assert train(made) == [0, 0], printed(made)
        return steps(made)

    free, tight = run("free", "job.clip_norm=null"), run("tight", "job.clip_norm=0.01")
    assert tight[0]["gradient_norm"] == pytest.approx(free[0]["gradient_norm"], rel=1e-6)
    assert tight[-1]["loss"] != pytest.approx(free[-1]["loss"], abs=1e-5)


# --- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "ranks", "then", "ranks_then"),
    [
        long("fsdp_full", 2, "fsdp_full", 2),
        ("fsdp_full", 4, "fsdp_full", 2),
        long("fsdp_full", 2, "single", 1),
        long("single", 1, "fsdp_hybrid", 4),
        long("ddp", 2, "fsdp_full", 4),
        long("fsdp_grad_op", 2, "ddp", 2),
    ],
)
def test_resuming_continues_the_same_losses_on_any_layout(
    first: str, ranks: int, then: str, ranks_then: int, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "first", f"parallelism={first}", *on(ranks))
    resumed = make_run(tmp_path / "then", f"parallelism={then}", *on(ranks_then), "job.checkpoint_every_steps=3")
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert train(resumed) == [0] * ranks_then, printed(resumed)
    assert events(resumed, "started")[-1]["from_step"] == 3
    assert_equal(steps(resumed), reference)


@pytest.mark.slow
@pytest.mark.long
def test_a_half_written_checkpoint_is_passed_over(reference: list[dict[str, float]], tmp_path: Path) -> None:
    run = interrupted(tmp_path, "parallelism=fsdp_full", *on(2))
    (run.checkpoints / ".step-00000004.writing").mkdir()
    (run.checkpoints / ".step-00000004.writing/__0_0.distcp").write_bytes(b"torn")
    assert train(run) == [0, 0], printed(run)
    assert events(run, "started")[-1]["from_step"] == 3
    assert_equal(steps(run), reference)
    assert not list(run.checkpoints.glob(".*")), "the next start clears what a killed one left"


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "job.checkpoint_every_steps=1", "job.keep_checkpoints=2")
    assert train(run) == [0, 0], printed(run)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000005", "step-00000006"]
    saved = events(run, "checkpoint")
    began, ended = (datetime.fromisoformat(str(event["time"])) for event in (events(run, "started")[-1], saved[-1]))
    written_s = [float(str(event["checkpoint_write_time_s"])) for event in saved]
    assert len(written_s) == 6
    assert 0 < sum(written_s) <= (ended - began).total_seconds(), "they were written one after another in this time"


def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=fsdp_full", "job.steps=100000", "job.checkpoint_every_steps=100000")
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    for _ in range(600):
        if len(steps(run)) > 2:
            break
        time.sleep(0.05)
    (second,) = [pid for pid, rank in rank_processes(process.pid or 0).items() if rank == 1]
    os.kill(second, signal.SIGTERM)
    process.join(limit_s(180))
    (end,) = events(run, "stopped")
    assert end["step"] == steps(run)[-1]["step"]
    assert (run.checkpoints / f"step-{end['step']:08d}").is_dir()
    assert not events(run, "failed")


def rank_processes(parent: int) -> dict[int, int]:
    """Ranks by process id: forked in order, so the n-th child is rank n."""
    children = sorted(psutil.Process(parent).children(), key=lambda child: child.pid)
    return {child.pid: rank for rank, child in enumerate(children)}


def test_a_rank_that_fails_leaves_its_rank_node_and_error_on_record(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", f"job.init_from={tmp_path}/nothing")
    assert set(train(run)) == {1}
    failed = events(run, "failed")
    assert "has neither lit_model.pth nor *.safetensors. Set it to a Hugging Face directory" in str(failed[0]["error"])
    assert {"rank", "node"} <= failed[0].keys()


# --- LitGPT checkpoint directories ---------------------------------------------------------------------------


def test_the_exported_directory_loads_in_stock_litgpt_and_as_init_from(tmp_path: Path) -> None:
    run = make_run(tmp_path, "name=exported", "parallelism=fsdp_full", "job.export=true")
    assert train(run) == [0, 0], printed(run)
    stock = GPT(Config.from_file(run.export / "model_config.yaml"))
    stock.load_state_dict(torch.load(run.export / "lit_model.pth", weights_only=True))

    going_on = ("job.steps=1", "job.warmup_steps=0", "job.min_learning_rate=0", f"job.init_from={run.export}")
    one = make_run(tmp_path, "name=one", "parallelism=single", "ranks_per_node=1", *going_on)
    four = make_run(tmp_path, "name=four", "parallelism=fsdp_hybrid", *on(4), *going_on)
    assert train(one) == [0], printed(one)
    assert train(four) == [0] * 4, printed(four)
    assert losses(one) == pytest.approx(losses(four), abs=1e-5)
    assert losses(one)[0] == pytest.approx(mean_loss(stock, one), abs=1e-5)


def test_the_export_of_a_run_on_text_is_a_whole_litgpt_directory_with_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("To be, or not to be, that is the question. " * 200)
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "job.export=true", "data=text",
                   f"data.path={tmp_path}/some.txt", "data.bpe_vocab_size=300")  # fmt: skip
    assert train(run) == [0], printed(run)
    check_valid_checkpoint_dir(run.export)
    tokenizer = Tokenizer(run.export)
    assert tokenizer.decode(tokenizer.encode("that is the question")) == "that is the question"


def test_a_checkpoint_of_another_model_is_refused_with_the_shapes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "name=small", "parallelism=single", "ranks_per_node=1", "job.export=true", "job.steps=1",
                   "job.warmup_steps=0")  # fmt: skip
    assert train(run) == [0], printed(run)
    other = make_run(tmp_path, "name=other", "parallelism=single", "ranks_per_node=1", f"job.init_from={run.export}",
                     "model.intermediate_size=96")  # fmt: skip
    assert train(other) == [1]
    assert "has shape (80, 48), the model wants (96, 48). Set model= to match." in str(events(other, "failed")[0])


# --- the record ----------------------------------------------------------------------------------------------


def test_the_time_split_of_a_run_sums_to_its_total(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "job.checkpoint_every_steps=2")
    assert train(run) == [0, 0], printed(run)
    (end,) = events(run, "finished")
    parts = [v for k, v in end.items() if k.endswith("_s") and k != "total_time_s" and isinstance(v, float)]
    assert sum(parts) == pytest.approx(end["total_time_s"], rel=1e-6)
    assert end["checkpoint_total_time_s"] == pytest.approx(sum(r.get("checkpoint_time_s", 0) for r in steps(run)))


@pytest.mark.long
def test_ddp_is_gone_before_its_process_group_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a rank may hang at its end: DDP joins gloo's threads with the GIL, for which one of them waits."""
    destroy = dist.destroy_process_group

    def counted() -> None:
        left = [each for each in gc.get_objects() if isinstance(each, DistributedDataParallel)]
        print(f"copies of DDP: {len(left)}", flush=True)
        destroy()

    monkeypatch.setattr(dist, "destroy_process_group", counted)  # also in the ranks, which are forked
    run = make_run(tmp_path, "parallelism=ddp", "ranks_per_node=2", "job.steps=2")
    assert train(run) == [0, 0], printed(run)
    assert printed(run).count("copies of DDP: 0") == 2


def test_a_process_knows_when_it_began() -> None:
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    before = time.time()
    process = context.Process(target=lambda: sender.send(process_start()))
    process.start()
    began = receiver.recv()
    process.join()
    # The kernel counts in hundredths of a second.
    assert before - 0.02 < began < time.time()


def test_a_run_that_could_be_killed_any_time_records_its_start_up_first_and_where_each_step_ended(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "job.checkpoint_every_steps=2")
    assert train(run) == [0, 0], printed(run)
    (start,), (end,) = events(run, "started"), events(run, "finished")
    assert start["startup_time_s"] == end["startup_time_s"]
    elapsed_s = [row["elapsed_s"] for row in steps(run)]
    assert elapsed_s == sorted(elapsed_s)
    total_s, startup_s = (float(str(end[key])) for key in ("total_time_s", "startup_time_s"))
    assert 0 < elapsed_s[0] < elapsed_s[-1] < total_s - startup_s


def test_nodes_on_one_machine_are_recorded_as_emulated(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "nodes=2", "ranks_per_node=1", "job.steps=1", "job.warmup_steps=0")
    assert train(run) == [0, 0], printed(run)
    assert events(run, "started")[0]["emulated_nodes"] is True


def test_every_recorded_name_is_in_the_registry_with_its_unit(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "job.checkpoint_every_steps=2")
    assert train(run) == [0, 0], printed(run)
    header, *rows = (json.loads(line) for line in run.metrics.read_text().splitlines())
    assert header["units"] == {metric.name: metric.unit for metric in STEP_METRICS}
    assert all(name in REGISTRY for row in rows for name in row)
    assert {metric.name for metric in ATTEMPT_METRICS} <= events(run, "finished")[0].keys()
