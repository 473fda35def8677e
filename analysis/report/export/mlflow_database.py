"""trackers/mlflow.db: all runs as MLflow stores them, for `mlflow ui --backend-store-uri sqlite:///mlflow.db`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from analysis.report.export.tracked import TrackedRun
from jobs.files import read_bytes

MOST_PER_CALL = {"metrics": 1000, "params": 100}
"""What MLflow's log_batch takes."""
MOST_BYTES = 1 << 34


def mlflow_database(runs: Iterable[TrackedRun]) -> bytes:
    """Return an SQLite database of MLflow with an experiment for each sweep."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="slurmscale-mlflow-") as directory:
        file = Path(directory) / "mlflow.db"
        client = MlflowClient(tracking_uri=f"sqlite:///{file}")
        experiments: dict[str, str] = {}
        for run in runs:
            if run.sweep not in experiments:
                # No artifact is stored, and a path of this machine would not be there on another.
                experiments[run.sweep] = client.create_experiment(run.sweep, artifact_location="artifacts")
            add_run(client, experiments[run.sweep], run)
        return read_bytes(file, MOST_BYTES)


def add_run(client: MlflowClient, experiment: str, run: TrackedRun) -> None:
    """Store a run with its settings, values and steps."""
    tags = {"slurmscale.id": run.id, "slurmscale.used": str(run.used).lower()}
    made = client.create_run(experiment, start_time=round(1000 * run.start_s), tags=tags, run_name=run.name).info.run_id
    params = [Param(key, value) for key, value in run.settings.items()]
    for begin in range(0, len(params), MOST_PER_CALL["params"]):
        client.log_batch(made, params=params[begin : begin + MOST_PER_CALL["params"]])
    curves = [
        Metric(f"step/{name}", value, round(1000 * time_s), step)
        for step, time_s, values in run.steps
        for name, value in values.items()
    ]
    end_ms = max((round(1000 * time_s) for _, time_s, _ in run.steps), default=round(1000 * run.start_s))
    metrics = [*curves, *(Metric(name, value, end_ms, 0) for name, value in run.values.items())]
    for begin in range(0, len(metrics), MOST_PER_CALL["metrics"]):
        client.log_batch(made, metrics=metrics[begin : begin + MOST_PER_CALL["metrics"]])
    client.set_tag(made, "mlflow.note.content", f"{run.sweep}/{run.name}, imported from slurmscale's records")
    client.set_terminated(made, "FINISHED" if run.used else "FAILED", end_time=end_ms)
