"""Rules of the stages besides training: their needs, and the launchers that support them."""

from __future__ import annotations

from jobs.engines.engine import engine_of
from jobs.plan.rules.rule import Rule, undivided
from jobs.schema import Run, Stage
from jobs.work.work import work_of

OF_EACH_RUN = ("evaluate", "serve")


def stages_of(run: Run) -> dict[str, Stage]:
    """Return the stages of a run besides training, by name, in their order."""
    named = {
        "prepare": run.stages.prepare,
        "evaluate": run.stages.evaluate,
        "serve": run.stages.serve,
        "report": run.stages.report,
    }
    return {name: stage for name, stage in named.items() if stage is not None}


def stages_of_each_run(run: Run) -> list[str]:
    """Return the stages that follow each run; the others are of the whole submission."""
    return [name for name in stages_of(run) if name in OF_EACH_RUN]


def stage_gpus(run: Run, name: str) -> int:
    """Return the GPUs of a stage."""
    given = stages_of(run)[name].gpus
    return given if given is not None else int(name in OF_EACH_RUN and run.cluster.gpus)


def stages_ask_for_what_they_use(run: Run) -> str | None:
    """Require positive resources, and a GPU for evaluation and load only: a stage is one process."""
    for name, stage in stages_of(run).items():
        most = int(name in OF_EACH_RUN)
        if not 0 <= stage_gpus(run, name) <= most:
            return f"stages.{name}.gpus={stage.gpus}: one process uses {most}. Set stages.{name}.gpus={most}."
    return None


def launcher_chains_stages(run: Run) -> str | None:
    """Require a launcher with job dependencies."""
    kind = run.starter
    if stages_of(run) and not kind.chains_stages:
        return (
            f"Stages need job dependencies, which launcher={kind.name} does not support. Set stages=train and run "
            f"`slurmscale report` afterwards, or set launcher={'pbs' if kind.needs_pbs else 'slurm'}."
        )
    return None


def evaluation_has_samples_and_weights(run: Run) -> str | None:
    """Require weights to evaluate and samples to evaluate on."""
    # Other work refuses the stage itself.
    if run.stages.evaluate is None or not work_of(run).reads_samples:
        return None
    without = "or stages.evaluate=null."
    read, engine = engine_of(run).evaluated_from, run.engine.kind.name
    if read == "export" and not run.job.export:
        return (
            f"stages.evaluate reads the export of engine={engine}, and job.export is false. Set job.export=true, "
            f"{without}"
        )
    if read is None:
        return (
            f"stages.evaluate reads checkpoints of engine=native; those of engine={engine} have another "
            f"form. Set stages.evaluate=null, or engine=native."
        )
    if not run.data.holds_out:
        return (
            f"stages.evaluate computes the loss on samples that no step trains on, and none are held out. Set "
            f"data.held_out_samples=NUMBER, {without}"
        )
    if run.job.checkpoint_every_steps is None and not run.job.export:
        return (
            f"stages.evaluate needs the weights after training, and this run keeps none. Set "
            f"job.checkpoint_every_steps=NUMBER (the last step is always saved then) or job.export=true, {without}"
        )
    return None


def evaluation_without_training(run: Run) -> str | None:
    """Require samples, one process and the native engine for a run that only evaluates."""
    if run.job.train or not work_of(run).reads_samples:
        return None
    if run.ranks > 1:
        one = " ".join(("parallelism=single", *undivided(run), "nodes=1", "ranks_per_node=1"))
        return f"job.train=false is one process, and these are {run.ranks} ranks. Set {one}, or job.train=true."
    if not run.data.holds_out:
        return (
            "job.train=false computes the loss on held-out samples, and none are held out. Set data.test_split=0.2, or "
            "job.train=true."
        )
    if run.stages.evaluate is not None:
        return "job.train=false evaluates by itself. Set stages.evaluate=null, or job.train=true."
    return None


RULES: tuple[Rule, ...] = (
    stages_ask_for_what_they_use,
    launcher_chains_stages,
    evaluation_has_samples_and_weights,
    evaluation_without_training,
)
