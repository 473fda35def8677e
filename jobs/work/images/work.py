"""Training of an image classifier."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jobs.errors import ConfigError, DataError
from jobs.plan.rules import rehearsal
from jobs.schema import Run
from jobs.versions import is_missing
from jobs.work.images.network import parameters
from jobs.work.work import Entry, Rule, Work

MOST_MADE_BYTES = 10e9
"""Images that a run makes in its own directory; a core makes some MB per second."""


NOT_READ = {
    "storage": "null", "serving": "null", "job.lora": "null", "job.prompt_tuning": "null", "job.export": "false",
    "job.init_from": "null", "job.optimizer": "adamw", "job.optimizer_class": "null", "job.optimizer_arguments": "{}",
    "job.loss_band.reference": "null", "engine.profile.steps": "[]", "job.checkpoint_copy_dir": "null",
    "stages.prepare": "null", "stages.evaluate": "null", "stages.serve": "null",
}  # fmt: skip
"""Settings of language models, which training on images would not follow."""


class Images(Work):
    """Training on JPEG files."""

    entry_point = "jobs.work.images.trainer:train"
    rules = "jobs.work.images.rules"
    not_read = NOT_READ
    reads_of_job = frozenset({
        "checkpoint_every_steps", "clip_norm", "decay", "decay_steps", "epochs", "keep_checkpoints", "learning_rate",
        "micro_batch_size", "min_learning_rate", "precision", "seed", "steps", "unmeasured_steps", "warmup_steps",
        "weight_decay",
    })  # fmt: skip
    reads_of_engine = frozenset({"tf32", "deterministic", "pace_every_steps", "startup_limit_s"})
    has_batch = True
    meaningless = ("sequence_length",)
    paths = ("images.path", "images.validation_path")

    def unread(self, run: object) -> dict[str, str]:
        """Return model and data of text."""
        return {
            "model": "its network is images.network",
            "data": "its images are the shards in images.path, or random ones with images.path=null",
        }

    def name(self, run: Run) -> None:
        """Name the network and the images."""
        assert run.images is not None
        run.model.name = run.images.network.name + (rehearsal.ENDING if run.rehearsal else "")
        run.data.name = "jpeg"

    def not_read_because(self, run: Run, key: str, value: str, remedy: str) -> str:
        """Return the refusal of a setting of language models."""
        from jobs.work.images.rules import not_read_because

        return not_read_because(run, key, remedy)

    def warnings(self) -> Iterable[Rule]:
        """Return those of a training that hold for images."""
        from jobs.plan.rules import values
        from jobs.work.images.rules import memory_is_tight

        return (*rehearsal.WARNINGS, memory_is_tight, values.nothing_is_steady, values.last_checkpoint_takes_longer)

    def parameters(self, run: Run) -> int:
        """Return the weights of the network."""
        assert run.images is not None
        return parameters(run.images.network, run.images.classes)

    def checkpoint_bytes(self, run: Run) -> int:
        """Return the size of the weights and SGD's momentum in float32."""
        return 0 if run.job.checkpoint_every_steps is None else 2 * 4 * self.parameters(run)

    def rank_bytes(self, run: Run) -> float:
        """Return the size of weights, gradients and momentum in float32."""
        return 3 * 4 * self.parameters(run)

    def predicted_columns(self, run: Run) -> dict[str, str]:
        """Return memory, step time, rate and hours, and what limits the rate."""
        from jobs.plan.predicted_table import with_interval
        from jobs.plan.rules.memory import verdict
        from jobs.work.images.speed import UNCALIBRATED, image_memory, image_speed

        if (found := image_speed(run)) is None:
            return {}
        compared = verdict(run, image_memory(run))
        return {
            "constants": UNCALIBRATED.partition(":")[0],
            "memory": "" if compared is None else compared.value,
            "step (s)": with_interval(found.step_time_s),
            "images/s": with_interval(found.images_per_s),
            "limit": found.limited_by,
            "hours": "" if found.hours is None else with_interval(found.hours),
        }

    def predicted_record(self, run: Run) -> dict[str, object] | None:
        """Return the predictions of memory and speed, on GPUs whose rates are known."""
        from jobs.work.images.speed import image_memory, image_speed

        if (found := image_speed(run)) is None:
            return None
        memory = {key: value for key, value in image_memory(run).record().items() if key != "basis"}
        return found.record() | memory

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield the source of the images, and what the predicted rate leaves out."""
        from jobs.work.images.speed import decoding_note, image_speed

        assert run.images is not None
        where = f"read from {run.images.path}"
        if run.images.path is None:
            size_gb = made_bytes(run) / 1e9
            where = f"{run.images.count:,} random ones, {size_gb:,.3g} GB, are made unless images.path is set"
        left_out = "predictions suppose that storage is fast enough, and leave out validation"
        if image_speed(run) is None:
            left_out = "memory and speed are not predicted without a GPU whose rates are known"
        yield "images", f"{where}; {left_out}"
        if (note := decoding_note(run)) is not None:
            yield "speed", note

    def packages(self, run: Run) -> dict[str, str]:
        """Return torch, and the packages that decode."""
        assert run.images is not None
        return super().packages(run) | run.images.packages

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise DataError if images that this machine sees cannot be used, or if made ones have no room."""
        from jobs.work.images.make import refuse_full
        from jobs.work.images.shards import shards_of

        assert run.images is not None
        if run.images.path is None:
            if made_bytes(run) > MOST_MADE_BYTES:
                raise DataError(
                    f"{run.name}: images.path is not set, and a run makes at most {MOST_MADE_BYTES / 1e9:g} GB of "
                    f"images, not {made_bytes(run) / 1e9:,.0f}. Make them once by `slurmscale images DIRECTORY` and "
                    "set images.path=DIRECTORY, or set a smaller images.count."
                )
            refuse_full(sweep, run.images.count, run.images.mean_kb)
        for key, path in run.images.directories.items():
            # A path of the nodes alone is examined there (jobs.work.images.jpegs).
            if Path(path).exists() or run.launcher.kind.on_this_machine:
                shards_of(Path(path), key)

    def executes(self, run: Run) -> dict[str, list[str]]:
        """Return the directories that are read."""
        assert run.images is not None
        return {"reads": list(run.images.directories.values())}

    def directories(self, run: Run) -> list[Path]:
        """Return the directories of images."""
        assert run.images is not None
        return [Path(path) for path in run.images.directories.values()]

    def entry(self, run: Run) -> Entry:
        """Return the loop; raise ConfigError where the Python of the ranks lacks a package that decodes the images."""
        assert run.images is not None
        packages = run.images.packages
        if missing := [package for package in packages if is_missing(package)]:
            raise ConfigError(
                f"job={run.job.name} images.decoder={run.images.decoder.name} imports {' and '.join(packages)}, and "
                f"the nodes' Python has no {' and no '.join(missing)}. Run pip install --editable "
                f"'.[train,{','.join(packages.values())}]' in the checkout, or set a container or cluster.python that "
                "has them."
            )
        return super().entry(run)


def made_bytes(run: Run) -> float:
    """Return the space that the images take which a run makes."""
    assert run.images is not None
    return 0 if run.images.path else 1000 * run.images.mean_kb * run.images.count


WORK = Images()
