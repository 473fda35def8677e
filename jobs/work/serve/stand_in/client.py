"""A load generator that writes its result as vLLM's benchmark does; latencies are those that a server reports, if any.

`python client.py URL PROMPTS REQUESTS CONCURRENCY OUTPUT_TOKENS RESULT LIMITS`; of the limits only `e2el:MS`.
Needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def send(url: str, prompt: str, most: int, concurrency: int) -> tuple[float, dict[str, int]] | None:
    """Return the latency and the usage of a request; None if it failed."""
    body = json.dumps({"prompt": prompt, "max_tokens": most, "concurrency": concurrency}).encode()
    # The variable of vLLM's benchmark.
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}"}
    request = urllib.request.Request(f"{url}/v1/completions", body, headers)  # noqa: S310 (its own server)
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310 (its own server)
            usage = json.load(answer)["usage"]
            return usage.get("latency_s", time.monotonic() - began), usage
    except OSError:
        return None


def main(arguments: list[str]) -> None:
    """Send the requests and write the result."""
    url, prompts, requests, concurrency, most, result, limits = arguments
    texts = [json.loads(line)["prompt"] for line in Path(prompts).read_text().splitlines()]
    assert len(texts) == int(requests)
    began = time.monotonic()
    with ThreadPoolExecutor(int(concurrency)) as pool:
        answers = [
            answer for answer in pool.map(lambda text: send(url, text, int(most), int(concurrency)), texts) if answer
        ]
    duration = time.monotonic() - began
    inputs, outputs = (sum(usage[f"{key}_tokens"] for _, usage in answers) for key in ("prompt", "completion"))
    latencies_ms = [1e3 * seconds for seconds, _ in answers]
    document = {
        "duration": duration, "completed": len(answers), "failed": len(texts) - len(answers),
        "total_input_tokens": inputs, "total_output_tokens": outputs, "request_throughput": len(answers) / duration,
        "output_throughput": outputs / duration, "total_token_throughput": (inputs + outputs) / duration,
        "median_e2el_ms": statistics.median(latencies_ms), "p99_e2el_ms": max(latencies_ms),
    }  # fmt: skip
    if limits.startswith("e2el:"):
        good = sum(each <= float(limits.removeprefix("e2el:")) for each in latencies_ms)
        document["request_goodput"] = good / duration
    Path(result).write_text(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
