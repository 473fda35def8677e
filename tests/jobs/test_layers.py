"""Imports of jobs point one way: from the commands down to the schema. Kinds of work and engines share a layer.

They are doors: what is below asks their protocols (engines.engine, work.work), which look them up by name. Analysis,
the only room that is not below jobs/, reads run directories and is read by explore, which stands above both.
"""

from __future__ import annotations

import re

from tests.support.imports import modules, refuse_circles, upward
from tests.support.paths import ROOT

# From the ground up: a room imports itself and what stands before it. More special names have a place of their own.
ROOMS = (
    "errors",
    "answers",
    "files",
    "metrics",
    "expectation",
    "ranges",
    "parallelism",
    "settings",
    "schema",
    "lookup",
    "explore.propose.bracket",
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
    "loss_band",
    "engines.native.optimizers",
    "visible",
    "console",
    "engines.litgpt.names",
    "work.work",
    "plan",
    "ranks",
    "versions",
    "run_events",
    "failure_causes",
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
    "analysis",
    "doctor",
    "explore",
    "command_line",
    "cli",
    "submit.__main__",
)

# Modules below analysis that import it all the same, in a function or not, with the reason.
READS = {
    "jobs.stages.report": "the last stage of a sweep is its report",
    "jobs.work.serve.bench": "the results of a load generator are read as a report reads them",
    "jobs.work.program.piece": "the cause of a program's end is in its log",
    "jobs.work.serve.search": "limits are set on metrics that load generators print",
}
OF_ANALYSIS = re.compile(r"^ *(from|import) analysis\b", re.MULTILINE)


def loaded() -> dict[str, set[str]]:
    """Return the modules of jobs and analysis, each with those of both that load with it."""
    return {
        module: (others | across[module]) - {"jobs"}
        for package, other in (("jobs", "analysis"), ("analysis", "jobs"))
        for across in [modules(package, other)]
        for module, others in modules(package).items()
    }


def test_a_room_imports_only_what_stands_before_it() -> None:
    rooms = [" ".join(name if name == "analysis" else f"jobs.{name}" for name in names.split()) for names in ROOMS]
    listed = {each: {other for other in others if each not in READS or not other.startswith("analysis.")}
              for each, others in loaded().items()}  # fmt: skip
    assert not upward(listed, rooms)


def test_no_module_imports_itself_by_way_of_others() -> None:
    refuse_circles(loaded())


def test_besides_explore_and_the_commands_only_listed_modules_import_analysis() -> None:
    files = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "jobs").rglob("*.py")}
    found = {".".join(file.with_suffix("").parts) for file, text in files.items() if OF_ANALYSIS.search(text)}
    assert {name for name in found if not name.startswith(("jobs.explore.", "jobs.command_line."))} == set(READS)
