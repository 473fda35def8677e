"""A server of the OpenAI interface whose model answers `max_tokens` words.

`python server.py HOST PORT [CAPACITY]`: with CAPACITY it reports a latency that grows with the "concurrency" of
a request, whatever the load of the machine. Needs nothing but Python. Counts as vLLM does, at /metrics.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_S = 0.001
LATENCY_S = 0.25
counts = {"prompt_tokens_total": 0, "generation_tokens_total": 0}
reasons = {"length": 0, "stop": 0}
gauges = {"num_requests_running": 0}
lock = threading.Lock()
# The variable of vLLM's server.
key = os.environ.get("VLLM_API_KEY")
capacity = int(sys.argv[3]) if len(sys.argv) > 3 else None


class Handler(BaseHTTPRequestHandler):
    """Completions, health and counters."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer to health and counters."""
        if self.path == "/health":
            self.answer("")
        elif self.path == "/metrics":
            lines = [f'vllm:{name}{{engine="0"}} {value}.0' for name, value in counts.items()]
            running = gauges["num_requests_running"]
            lines += [f'vllm:num_requests_running{{engine="0"}} {running}.0', "vllm:num_requests_waiting 0.0"]
            lines += [f'vllm:kv_cache_usage_perc{{engine="0"}} {running / 10}']
            lines += [f'vllm:request_success_total{{finished_reason="{r}"}} {n}.0' for r, n in reasons.items()]
            self.answer("# HELP counters of a server without a model\n" + "\n".join(lines) + "\n")
        else:
            self.answer("", 404)

    def do_POST(self) -> None:
        """Answer a prompt after the time of its words."""
        if key is not None and self.headers["Authorization"] != f"Bearer {key}":
            self.answer("", 401)
            return
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words, most = len(request["prompt"].split()), int(request["max_tokens"])
        # An answer to an even number of words ends by itself.
        written = most if words % 2 else most - 1
        with lock:
            gauges["num_requests_running"] += 1
        time.sleep(written * TOKEN_S)
        with lock:
            gauges["num_requests_running"] -= 1
            counts["prompt_tokens_total"] += words
            counts["generation_tokens_total"] += written
            reasons["length" if written == most else "stop"] += 1
        usage: dict[str, float] = {"prompt_tokens": words, "completion_tokens": written}
        if capacity is not None:
            usage["latency_s"] = LATENCY_S * -(-request["concurrency"] // capacity)
        if request.get("stream"):
            self.stream(written, usage)
        else:
            self.answer(json.dumps({"choices": [{"text": "word " * written}], "usage": usage}))

    def stream(self, written: int, usage: dict[str, float]) -> None:
        """Send an answer as server-sent events: a word each, then the usage."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        events: list[dict[str, Any]] = [{"choices": [{"text": "word "}]} for _ in range(written)]
        for event in [*events, {"choices": [], "usage": usage}]:
            self.wfile.write(f"data: {json.dumps({'object': 'text_completion', **event})}\n\n".encode())
            time.sleep(TOKEN_S)
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, body: str, status: int = 200) -> None:
        """Send a body."""
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Print nothing for a request."""


class Server(ThreadingHTTPServer):
    """A server that prints nothing when a client goes away."""

    request_queue_size = 4096

    def handle_error(self, *arguments: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    print("stand-in server starts", flush=True)
    Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
