"""Imports of jobs point one way: from the commands down to the schema. Kinds of work and engines share a layer.

They are doors: what is below asks their protocols (engines.engine, work.work), which look them up by name.
"""

from __future__ import annotations

from tests.support.imports import modules, refuse_circles, upward

# From the ground up: a room imports itself and what stands before it. More special names have a place of their own.
ROOMS = (
    "errors",
    "files",
    "metrics",
    "ranges",
    "parallelism",
    "settings",
    "schema",
    "lookup",
    "engines.engine",
    "layout",
    "engines.native.loss_chunk",
    "fitted_table",
    "secret_patterns",
    "secrets",
    "pieces",
    "output",
    "prompt_template",
    "network",
    "frozen",
    "event_fields",
    "rundir",
    "engines.native.optimizers",
    "visible",
    "console",
    "engines.litgpt.names",
    "work.work",
    "plan",
    "ranks",
    "versions",
    "run_events",
    "failures",
    "data",
    "private",
    "rendezvous",
    "lease",
    "runtime",
    "engines.deepspeed.configuration",
    "visitors",
    "engines.trainer",
    "engines work",
    "run",
    "stages",
    "submit",
    "campaign",
    "doctor",
    "tune",
    "command_line",
    "cli",
    "submit.__main__",
)


def test_a_room_imports_only_what_stands_before_it() -> None:
    found = {module: others - {"jobs"} for module, others in modules("jobs").items()}
    assert not upward(found, [" ".join(f"jobs.{name}" for name in names.split()) for names in ROOMS])


def test_no_module_imports_itself_by_way_of_others() -> None:
    refuse_circles(modules("jobs"))
