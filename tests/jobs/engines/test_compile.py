"""engine.compile=true: every step of a run computes in compiled layers, and computes what an uncompiled run does."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from jobs.engines.native.compilation import overlap_tp, overlaps_tp
from jobs.rundir import RunDir, load_run
from jobs.runtime.recorder import Recorder
from tests.support.composing import one
from tests.support.real_run import events, make_run, printed, rank, steps, train
from tests.support.training import assert_equal, long

LAYERS = 12  # more than torch compiles one function for (recompile_limit, 8)
MODEL = ("job.steps=4", f"model.layers={LAYERS}", "model.heads=4", "model.kv_heads=2", "model.head_size=12")
UNEVEN = ("data=docstrings", "data.max_samples=48", "data.bpe_vocab_size=300", "job.sequence_length=64",
          "data.too_long=truncate")  # fmt: skip
PACKED = (*UNEVEN, "job.batching=packed")


def counting(calls: Counter[str]) -> Any:
    """A compiler that leaves graphs as they are, and counts them and their calls."""

    def compiler(direction: str, graph: Any, _inputs: object) -> Any:
        calls[f"{direction} graphs"] += 1

        def call(*args: Any) -> Any:
            calls[direction] += 1
            return graph(*args)

        return call

    return aot_autograd(fw_compiler=partial(compiler, "forward"), bw_compiler=partial(compiler, "backward"))


def counted_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank with the counting compiler; it writes the counts after each step."""
    calls: Counter[str] = Counter()
    after_steps: list[dict[str, int]] = []
    record = Recorder.step

    def step(self: Recorder, *args: Any, **values: Any) -> None:
        breaks, skipped = counters["graph_break"].total(), counters["unimplemented"].total()
        after_steps.append({"breaks": breaks + skipped, **calls})
        record(self, *args, **values)

    torch.compile = partial(torch.compile, backend=counting(calls))
    Recorder.step = step  # type: ignore[method-assign]
    try:
        rank(directory, number, world, start)
    finally:
        (directory / f"calls{number}.json").write_text(json.dumps(after_steps))


def counts(run: RunDir) -> list[list[dict[str, int]]]:
    """The counts after each step, of each rank."""
    return [json.loads(file.read_text()) for file in sorted(run.path.glob("calls*.json"))]


LAYOUTS = {
    "single": ("parallelism=single", "ranks_per_node=1"),
    "ddp": ("parallelism=ddp", "ranks_per_node=2"),
    "fsdp": ("parallelism=fsdp_full", "ranks_per_node=2"),
    "hsdp": ("parallelism=fsdp_hybrid", "ranks_per_node=2", "nodes=2"),
    "pp": ("parallelism=pp", "ranks_per_node=2"),
    "tp": ("parallelism=tp", "ranks_per_node=2"),
    "tp without sequence parallelism": (
        "parallelism=tp", "ranks_per_node=2", "parallelism.sequence_parallel=false", "engine.loss=chunked",
    ),
    "tp_pp_fsdp": ("parallelism=tp_pp_fsdp", "ranks_per_node=8"),
}  # fmt: skip
ROWS = {"equal": (), "uneven": UNEVEN, "packed": PACKED}
MODES = ("none", "selective", "full")
EARLY = ("fsdp", "full", "uneven")


def cases() -> list[Any]:
    """Return every mode with every kind of rows under FSDP, each of both once under other layouts; one is in CI."""
    chosen = [("fsdp", mode, rows) for mode, rows in product(MODES, ROWS)]
    for turn, layout in enumerate(name for name in LAYOUTS if name != "fsdp"):
        modes = [mode for mode in MODES if not ("tp" in layout and mode == "selective")]
        chosen += [(layout, modes[(turn + i) % len(modes)], rows) for i, rows in enumerate(ROWS)]
    return [case if case == EARLY else long(*case) for case in chosen]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "checkpointing", "rows"), cases())
def test_every_step_of_every_layer_is_compiled(layout: str, checkpointing: str, rows: str, tmp_path: Path) -> None:
    common = (*MODEL, *LAYOUTS[layout], *ROWS[rows], f"engine.activation_checkpointing={checkpointing}")
    compiled = make_run(tmp_path, *common, "name=compiled", "engine.compile=true")
    assert set(train(compiled, of_rank=counted_rank)) == {0}, printed(compiled)
    (kernels,) = events(compiled, "kernels")
    assert (kernels["kernels_found"], kernels["kernels_compiled"]) == (0, 0), "the counting compiler keeps no graphs"
    eager = make_run(tmp_path, *common, "name=eager")
    assert set(train(eager)) == {0}, printed(eager)
    assert_equal(steps(compiled), steps(eager))

    run = load_run(compiled.config)
    micro_batches = 8 // (run.ranks // run.parallelism.tensor // run.parallelism.pipeline)
    passes = micro_batches * LAYERS // run.parallelism.pipeline
    for after_steps in counts(compiled):
        assert len(after_steps) == run.job.steps
        for done, after in enumerate(after_steps, start=1):
            for direction, times in (("forward", 2 if checkpointing == "full" else 1), ("backward", 1)):
                more = after[direction] - done * passes * times
                # Pipeline stages run on the meta device for each size of rows, to infer what they exchange.
                assert more == 0 or (run.parallelism.pipeline > 1 and 0 < more <= passes), after_steps
            assert after["breaks"] == 0
        # Rows of another length are one graph more: the second is for any length.
        devices = 2 if run.parallelism.pipeline > 1 else 1
        assert after_steps[-1]["forward graphs"] <= (1 if rows == "equal" else 2) * devices


@pytest.mark.parametrize(
    ("overrides", "device", "linked", "expected"),
    [
        ((), "cuda", True, True),
        ((), "cuda", False, False),
        ((), "cpu", True, False),
        (("engine.compile=false",), "cuda", True, False),
        (("parallelism.sequence_parallel=false",), "cuda", True, False),
        (("parallelism=fsdp_full",), "cuda", True, False),
        (("nodes=2", "ranks_per_node=1"), "cuda", True, False),
    ],
)
def test_products_overlap_with_tps_collectives_on_linked_gpus_of_one_node_only(
    overrides: tuple[str, ...], device: str, linked: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: linked)
    run = one("parallelism=tp", "ranks_per_node=2", "engine.compile=true", *overrides).run
    assert overlaps_tp(run, torch.device(device)) is expected


def test_the_compiler_and_the_group_of_tp_know_that_products_overlap() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        # Not by monkeypatch: it would delete the setting, which is no member of the module's own dictionary.
        with torch._inductor.config.patch(_micro_pipeline_tp=False):
            group = init_device_mesh("cpu", (2,)).get_group()
            overlap_tp(group)
            assert torch._inductor.config._micro_pipeline_tp
            assert is_symm_mem_enabled_for_group(group.group_name)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_a_later_job_compiles_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    graphs: list[dict[Path, int]] = []
    for turn in ("first", "second"):
        run = make_run(tmp_path, *MODEL, f"name={turn}", "ranks_per_node=1", "engine.compile=true")
        assert train(run) == [0], printed(run)
        kept = (tmp_path / "cache/slurmscale/kernels").rglob("*")
        graphs.append({path: path.stat().st_mtime_ns for path in kept if path.is_file() and "fxgraph" in path.parts})
    assert graphs[0]
    assert graphs[1] == graphs[0]
