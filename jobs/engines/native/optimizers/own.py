"""A torch.optim.Optimizer of the user (job.optimizer_class), with the run's groups and learning rates."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.optimizer import Optimizer
from jobs.errors import ConfigError
from jobs.schema import Job, Run

if TYPE_CHECKING:
    import torch

CHECKED_WITHIN_S = 300
OF_JOB = {"lr": "job.learning_rate", "weight_decay": "job.weight_decay", "betas": "job.beta1 and job.beta2"}
"""Arguments that the run's own keys are."""
WORDS = {"true": True, "false": False, "null": None}


class Own(Optimizer):
    """An optimizer of which only its class is known."""

    def moments(self, run: Run) -> float:
        """Return AdamW's two; `plan` notes that it does not know them (jobs.engines.native.engine)."""
        del run
        return 2

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer. Raise ConfigError if the class cannot be loaded or refuses its arguments."""
        del device
        job = run.job
        return made(parameters, str(job.optimizer_class), settings_of(job), job.optimizer_arguments)

    def refuse_unready(self, run: Run) -> None:
        """Raise ConfigError if this machine's Python cannot make it, in a process of its own: it is other code.

        Nothing is checked before the ranks start where they have another environment, or where there is no torch.
        """
        job, cluster = run.job, run.cluster
        if cluster.container or cluster.python or cluster.modules or cluster.setup or find_spec("torch") is None:
            return
        asked = json.dumps([job.optimizer_class, settings_of(job), job.optimizer_arguments])
        if (wrong := refusal(asked, tuple(cluster.env.items()))) is not None:
            raise ConfigError(f"{run.name}: {wrong}")


def settings_of(job: Job) -> dict[str, Any]:
    """Return the run's own settings of an optimizer, as far as its class has them."""
    return {"lr": job.learning_rate, "weight_decay": job.weight_decay, "betas": [job.beta1, job.beta2]}


def made(
    parameters: Iterable[Any], path: str, settings: Mapping[str, Any], arguments: Mapping[str, str]
) -> torch.optim.Optimizer:
    """Return an optimizer of the class MODULE.CLASS. Raise ConfigError with the words of what it raises."""
    import torch

    asked = f"job.optimizer_class={path}"
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # code of others: it may raise anything
        raise ConfigError(
            f"{asked} cannot be imported: {type(error).__name__}: {error}. Set the path of a class that the Python of "
            "the run finds: install its package, or put its directory on PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ConfigError(f"{asked} is no subclass of torch.optim.Optimizer. Set another class.")
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ConfigError(f"{asked} computes the loss several times in a step, which training does not. Set another "
                          "class.")  # fmt: skip
    known = inspect.signature(found).parameters
    if "lr" not in known:
        raise ConfigError(f"{asked} takes no lr, which job.learning_rate sets in every step. Set another class.")
    if settings["weight_decay"] and "weight_decay" not in known:
        raise ConfigError(f"{asked} takes no weight_decay, and job.weight_decay={settings['weight_decay']:g}. Set "
                          "job.weight_decay=0.")  # fmt: skip
    given = {key: value for key, value in settings.items() if key in known}
    given |= {key: literal(value) for key, value in arguments.items()}
    try:
        optimizer: torch.optim.Optimizer = found(parameters, **given)
    except Exception as error:
        raise ConfigError(
            f"{asked} refuses its arguments: {type(error).__name__}: {error}. Set job.optimizer_arguments to those "
            f"that {name} has."
        ) from error
    return optimizer


def literal(text: str) -> Any:
    """Return the value of a Python literal, or of true, false or null; other texts as they are."""
    try:
        return WORDS[text] if text in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@cache
def refusal(asked: str, env: tuple[tuple[str, str], ...]) -> str | None:
    """Return why a new process with the environment of a rank cannot make the optimizer; once for all runs of a sweep.

    A process that is killed, or ends itself, is one that cannot.
    """
    from jobs.submit.preparation.script_lines import code_environment

    command = [sys.executable, "-m", "jobs.engines.native.optimizers.own", asked]
    own = f"job.optimizer_class={json.loads(asked)[0]} "
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CHECKED_WITHIN_S, check=False,
            env=code_environment(Path(__file__).resolve().parents[4], dict(env)), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{own}was not imported within {CHECKED_WITHIN_S} s. Set another class."
    if done.returncode == 0:
        return None
    # Imports print warnings, too: only the last line of `main` is a reason.
    last = done.stderr.strip().rpartition("\n")[2]
    if last.startswith(own):
        return last
    return f"{own}ended the process that tried it, with exit status {done.returncode}. Set another class."


def main() -> None:
    """Make an optimizer of one weight, or end with a line that says why it cannot be made."""
    import torch

    path, settings, arguments = json.loads(sys.argv[1])
    try:
        made([torch.nn.Parameter(torch.zeros(2, 2))], path, settings, arguments)
    except ConfigError as error:
        sys.exit(" ".join(str(error).split()))


OPTIMIZER = Own()

if __name__ == "__main__":
    main()
