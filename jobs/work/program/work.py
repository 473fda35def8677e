"""A program of somebody else, described by a file of conf/program (program=NAME)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.layout import accumulation, gpu_limits, layout_of
from jobs.parallelism import TABLE_AXES
from jobs.plan.rules.rehearsal import ENDING
from jobs.schema import Engine, Job, Objective, Run
from jobs.settings.program import ParameterType, StartMode
from jobs.work.program import placeholders as names
from jobs.work.program.places import components, nodes_of
from jobs.work.program.substitution import names_in, text_of
from jobs.work.work import Component, Work

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.plan.predict.whole_runs import WholeTime

NOT_READ = {"stages.prepare": "null", "stages.evaluate": "null", "stages.serve": "null"}
"""Settings of a training, which a program would not follow."""
READ = {"job.name", "job.train", "job.steps", "engine.kind", "engine.hang_timeout_s", "engine.cpu_threads_per_rank"}
"""Keys that every program reads, whatever its {names}."""
BATCH = ("scaling.global_batch_size", "scaling.sequences_per_rank")
"""Keys of {global_batch_size}."""
JOB = {"name", "train", "steps"}
"""Settings of `job` that every program has."""
OF_SIZE = {"nodes", "ranks", "grid_rows", "grid_columns", "name", "repeat", "sweep"}
"""Keys that differ between runs of the same settings."""
PROCESSES = {
    StartMode.rank: "one process for each rank",
    StartMode.node: "one process on each node",
    StartMode.job: "one process",
}


class ProgramWork(Work):
    """The steps of a program."""

    entry_point = "jobs.work.program.run_program:run_program"
    rules = "jobs.work.program.rules"
    not_read = NOT_READ
    first_phase = None

    def unread(self, run: Run | DictConfig) -> dict[str, str]:
        """Return the sections and keys that no {name} of the program uses."""
        assert run.program is not None
        used = names.used_names(run.program)
        sections = names.used_sections(run.program)
        of_sections = (("job", Job), ("engine", Engine))
        keys = [f"{name}.{each.name}" for name, section in of_sections for each in fields(section)]
        why = f"program={run.program.name} does not use it"
        unread = [name for name in ("model", "parallelism", "data") if name not in sections]
        batch = [] if "global_batch_size" in used else BATCH
        return dict.fromkeys([*unread, *(key for key in (*keys, *batch) if key not in READ | used)], why)

    def not_read_because(self, run: Run, key: str, value: str, remedy: str) -> str:
        """Return the refusal of a key of a training."""
        return f"{key} belongs to a training, and job={run.job.name} starts a program. Set {remedy}, or another job."

    def settle_paths(self, run: Run, absolute: Callable[[str], str]) -> None:
        """Make absolute the parameters that are paths, the inputs, and the working directory."""
        assert run.program is not None
        program = run.program
        for name, about in program.parameters.items():
            if about.type is ParameterType.path and program.params.get(name):
                program.params[name] = absolute(program.params[name])
        for given in program.inputs.values():
            # Behind a name stands what is absolute already.
            given.path = given.path if given.path.startswith("{") else absolute(given.path)
        if program.directory is not None and not program.directory.startswith("{"):
            program.directory = absolute(program.directory)

    def name(self, run: Run) -> None:
        """Name the program in place of the model and the data that it does not use."""
        assert run.program is not None
        sections = names.used_sections(run.program)
        if "model" not in sections:
            run.model.name = run.program.name + (ENDING if run.rehearsal is not None else "")
        if "data" not in sections:
            run.data.name = ""

    def has_grid(self, run: Run) -> bool:
        """Return True if the program takes degrees of parallelism."""
        assert run.program is not None
        return "parallelism" in names.used_sections(run.program)

    def parameters(self, run: Run) -> int:
        """Return 0: what the program computes with is not known."""
        return 0

    def rank_bytes(self, run: Run) -> float:
        """Return 0: the memory of the program is not known."""
        return 0.0

    def components(self, run: Run) -> list[Component]:
        """Return the nodes in groups: a step with nodes of its own may ask for others."""
        [every] = super().components(run)
        return components(run, every)

    def own_settings(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings that the {names} of the program use, and its own section."""
        used = names_in(texts_in(config["program"]))
        sections = {name.partition(".")[0] for name in used}
        job = {key: value for key, value in config["job"].items() if key in JOB or f"job.{key}" in used}
        unused: dict[str, Any] = {key: {} for key in {"parallelism", "engine", "data"} - sections}
        return {**config, **unused, "job": job}

    def columns(self, run: Run) -> dict[str, str]:
        """Return the parameters of the program; options of its commands stand below the plan."""
        assert run.program is not None
        options = {name for name, about in run.program.parameters.items() if about.type is ParameterType.words}
        return {name: value for name, value in run.program.params.items() if name not in options}

    def settings_digest(self, run: Run) -> str | None:
        """Return a digest of its steps, parameters, files and other keys, of the ranks of a node and of the machine."""
        assert run.program is not None
        values = {name: value for name, value in names.known_values(run).items() if name not in OF_SIZE}
        program = asdict(run.program)
        own = {key: program[key] for key in ("name", "params", "env", "files", "directory", "inputs")}
        # As with cluster.partition, where nodes come from is no setting of the program.
        own["steps"] = {
            name: {key: value for key, value in step.items() if key not in names.OF_NODES}
            for name, step in program["steps"].items()
        }
        machine = (run.cluster.name, run.gpu.name, run.ranks_per_node, *gpu_limits(run).items())
        text = json.dumps([own, values, machine], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def predicted_as(self, run: Run) -> Run | None:
        """Return the training that the program declares to be like it; none if a step also generates."""
        from jobs.work.program.like_training import like_training

        assert run.program is not None
        if run.program.predicted is not None and run.program.predicted.rollouts is not None:
            return None
        found = like_training(run)
        return found if isinstance(found, Run) else None

    def predicted_columns(self, run: Run) -> dict[str, str]:
        """Return the wall time that a calibration predicts from finished runs of the same settings.

        Without one, the step of a program that declares rollouts.
        """
        from jobs.plan.predicted_table import with_interval

        found = measured_time(run)
        if found is None or isinstance(found, str):
            return step_columns(run)
        hours = found.time_s.scaled(run.nodes / 3600)
        return {
            "constants": "calibrated",
            "wall time (s)": with_interval(found.time_s),
            "node-hours": with_interval(hours),
        }

    def predicted_record(self, run: Run) -> dict[str, object] | None:
        """Return the predicted wall time of all steps, or the step of a program that declares rollouts."""
        from jobs.work.program.rollouts import RolloutSpeed, rollout_speed

        found = measured_time(run)
        if found is None or isinstance(found, str):
            step = rollout_speed(run)
            return step.record() if isinstance(step, RolloutSpeed) else None
        return {m.PROGRAM_TIME.name: asdict(found.time_s), "basis": f"calibrated: {found.basis}"}

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield the commands, where a predicted time is from, and what happens at a restart."""
        assert run.program is not None
        values = names.known_values(run)
        for name, step in run.program.steps.items():
            nodes, kind = nodes_of(run, name), "step" if step.ready is None else "server"
            where = "" if len(nodes) == run.nodes else f", {in_words(nodes)}"
            where += f" of partition {step.partition}" if step.partition else ""
            where += ", without GPUs" if run.cluster.gpus and step.gpus is False else ""
            yield f"{kind} {name}", f"{text_of(step.command, values)} ({PROCESSES[step.start]}{where})"
        if run.program.predicted is not None:
            yield "predicted", in_training_words(run)
        if (found := measured_time(run)) is not None:
            yield "wall time", found if isinstance(found, str) else f"predicted from {found.basis}"
        if run.program.resume is None:
            yield "restart", "the program declares no checkpoint: a restarted run begins again (program.resume)"

    def objective_refusal(self, run: Run) -> str | None:
        """Return why runs of the program do not measure the objective of their tuning: they have a merit only."""
        assert run.program is not None
        assert run.tune is not None
        if run.tune.objective is not Objective.merit:
            return (
                f"tune.objective={run.tune.objective.name} is measured in our own training, and runs of a program are "
                "compared by its merit. Set tune=merit."
            )
        if run.tune.steps != [1] and "job.steps" not in names.used_names(run.program):
            return (
                f"tune.steps={run.tune.steps}: program={run.program.name} does not use {{job.steps}}, so all its runs "
                "have one length. Set tune.steps=[1], which is one rung of whole runs."
            )
        return None

    def packages(self, run: Run) -> dict[str, str]:
        """Return no package: a program brings its own."""
        return {}

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise ConfigError if a locked input has another content, or one of a run on this machine does not exist.

        Another machine may have files that this one does not see.
        """
        from jobs.work.program.inputs import changed_inputs

        if changed := changed_inputs(run, must_exist=run.launcher.kind.on_this_machine):
            raise ConfigError(f"{run.name}: {changed[0]}")

    def executes(self, run: Run) -> dict[str, list[str]]:
        """Return the commands, and the files that it reads and writes."""
        assert run.program is not None
        values = names.known_values(run)
        return {
            "command": [text_of(step.command, values) for step in run.program.steps.values()],
            "reads": [text_of(given.path, values) for given in run.program.inputs.values()],
            "works in": [text_of(run.program.directory, values)] if run.program.directory else [],
        }


def measured_time(run: Run) -> WholeTime | str | None:
    """Return the wall time that a calibration predicts, why it does not, or None without a calibration."""
    if run.cluster.calibration is None:
        return None
    from jobs.plan.predict.whole_runs import whole_time

    return whole_time(run)


def step_columns(run: Run) -> dict[str, str]:
    """Return the predicted step of a program that declares rollouts; empty for another one."""
    from jobs.plan.predicted_table import with_interval
    from jobs.plan.rules.memory import verdict
    from jobs.work.program.rollouts import UNCALIBRATED, RolloutSpeed, rollout_speed

    found = rollout_speed(run)
    if not isinstance(found, RolloutSpeed):
        return {}
    compared = verdict(run, found.memory)
    return {
        "constants": UNCALIBRATED.partition(":")[0],
        "memory": "" if compared is None else compared.value,
        "step (s)": with_interval(found.step_time_s),
        "generation (s)": with_interval(found.generation_s),
        "completions/s": with_interval(found.completions_per_s),
    }


def in_training_words(run: Run) -> str:
    """Return the training whose memory and speed are predicted, or why none is."""
    from jobs.work.program.like_training import like_training
    from jobs.work.program.rollouts import rollout_speed

    assert run.program is not None
    assert run.program.predicted is not None
    found, rollouts, generated = like_training(run), run.program.predicted.rollouts, ""
    if isinstance(found, str):
        return found
    if rollouts is not None:
        if isinstance(unknown := rollout_speed(run), str):
            return unknown
        mean, longest = (text_of(text, names.known_values(run))
                         for text in (rollouts.completion_tokens, rollouts.longest_tokens))  # fmt: skip
        generated = f" after generating as many completions of {mean} tokens, at most {longest}"
    axes = ", ".join(f"{axis.heading} {degree}" for axis in TABLE_AXES if (degree := layout_of(found).degree(axis)) > 1)
    return (
        f"memory and speed are those of engine={found.engine.kind.name} with {found.model.name}, "
        f"{found.parallelism.strategy.name}{axes and f', {axes}'}, micro-batch {found.job.micro_batch_size} x "
        f"{accumulation(found)} = {found.global_batch_size}{generated} (program.predicted), without what further "
        "options change"
    )


def texts_in(value: object) -> Iterator[str]:
    """Yield every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for each in value.values() for text in texts_in(each))


def in_words(nodes: range) -> str:
    """Return the nodes of a step as text, from 0."""
    return f"node {nodes.start}" if len(nodes) == 1 else f"nodes {nodes.start} to {nodes.stop - 1}"


WORK = ProgramWork()
