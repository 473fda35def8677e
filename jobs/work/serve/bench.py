"""The loads on the replicas of a run: prompts, load generator, and the growth of the replicas' counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load.kinds.serve import client_values
from analysis.load.run_files import UnusableError
from jobs import metrics as m
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.metrics import Metric
from jobs.rundir import RunDir, append_event
from jobs.schema import Run
from jobs.settings.serving import LoadGenerator
from jobs.work.program.piece import Piece
from jobs.work.program.probe import fetched
from jobs.work.serve import load
from jobs.work.serve.counters import counters, growth
from jobs.work.serve.prompts import drawn
from jobs.work.serve.search import Searched, Values, within_limits


@dataclass
class Bench:
    """Replicas that are ready, behind one URL."""

    run: Run
    directory: RunDir
    url: str
    """That of the balancer, or of the only replica."""
    replicas: Mapping[int, str]
    """URL by number."""
    key: str
    """API key of the replicas."""
    prompts: Sequence[str]
    """The pool."""
    until: Callable[[Callable[[], bool]], None]
    """Waits for a condition; raises the error of a part that ends or hangs before."""

    def measured(self) -> dict[str, Any]:
        """Send warm-up and load, or all loads of a search; return the fields of the `served` event."""
        s = self.run.serving
        assert s is not None
        seed = self.run.job.seed
        if s.warmup_requests:
            self.send("warmup", s.warmup_requests, s.concurrency, seed)
        if s.search.most_concurrency is None:
            return self.counted("load", s.requests, s.concurrency, seed + 1)
        highest, answer = Searched(self.run, self.searched).answer()
        print(f"{self.run.name}: {answer}", flush=True)
        return {m.HIGHEST_CONCURRENCY.name: highest, "answer": answer}

    def searched(self, concurrency: int, repeat: int) -> Values:
        """Measure and record a load of a search; return the values of the load generator."""
        s = self.run.serving
        assert s is not None
        # In proportion, so that each request slot answers equally often and all loads of a search last about as long.
        requests = max(1, round(concurrency * s.requests / s.concurrency))
        name = self.directory.load_of_search(concurrency, repeat)
        found = self.counted(name, requests, concurrency, self.run.job.seed + concurrency + repeat)
        try:
            values = client_values(self.directory, s.client.name, name)
        except UnusableError as error:
            raise KnownCauseError(FailureCause.code, f"{error}, so the search cannot go on") from error
        kept = within_limits(self.run, values)
        append_event(
            self.directory, "load", concurrency=concurrency, load_repeat=repeat, requests=requests, kept=kept, **found
        )
        print(f"{self.run.name}: concurrency {concurrency}, load {repeat}: {'within' if kept else 'beyond'} the limits",
              flush=True)  # fmt: skip
        return values

    def counted(self, name: str, requests: int, concurrency: int, seed: int) -> dict[str, Any]:
        """Send a load; return its times and what the counters of the replicas grew by."""
        before = {number: self.counters(url) for number, url in self.replicas.items()}
        began_s = time.time()
        self.send(name, requests, concurrency, seed)
        ended_s = time.time()
        after = {number: growth(before[number], self.counters(url)) for number, url in self.replicas.items()}
        return {
            "load_began_s": began_s,
            "load_ended_s": ended_s,
            **sums(list(after.values())),
            "replicas": [
                {"replica": number, **{metric.name: value for metric, value in after[number].items()}}
                for number in sorted(after)
            ],
        }

    def send(self, name: str, requests: int, concurrency: int, seed: int) -> None:
        """Send requests to the end of the load generator; its result is serving/NAME.json, or in its log."""
        run = self.run
        assert run.serving is not None
        assert run.engine.server is not None
        client = run.serving.client
        result, log = self.directory.serving / f"{name}.json", self.directory.serving / f"{name}.log"
        for earlier in (result, log):
            earlier.unlink(missing_ok=True)
        files = load.write_requests(run, self.directory, name, drawn(self.prompts, requests, seed))
        command = load.load_command(
            run, self.directory, self.url, requests=requests, concurrency=concurrency, result=result, **files
        )
        env = load.client_environment(run, self.key)
        piece = Piece(f"the load generator ({client.name}, {name})", command, log, env, load.REMEDY[client])
        try:
            self.until(piece.ended)
        finally:
            piece.end()
        if piece.process.returncode:
            raise piece.failure()
        if client is not LoadGenerator.ab and not result.exists():
            raise KnownCauseError(FailureCause.code, f"the load generator wrote no {result}")

    def counters(self, url: str) -> dict[Metric, float]:
        """Return the counters of a replica; empty if it has none."""
        assert self.run.engine.server is not None
        path = self.run.engine.server.metrics
        text = None if path is None else fetched(url, path, self.run.engine.hang_timeout_s)
        return {} if text is None else counters(text.decode(errors="replace"))


def sums(of_replicas: list[dict[Metric, float]]) -> dict[str, float]:
    """Return each counter summed over the replicas, if all have it, and the largest share of the requests."""
    # A sum over some of the replicas would seem to be that of all.
    shared = [metric for metric in m.SERVING_METRICS if all(metric in each for each in of_replicas)]
    found = {metric.name: sum(each[metric] for each in of_replicas) for metric in shared}
    requests = found.get(m.SERVER_REQUESTS.name)
    if requests:
        found[m.LARGEST_REPLICA_SHARE.name] = max(each[m.SERVER_REQUESTS] for each in of_replicas) / requests
    return found
