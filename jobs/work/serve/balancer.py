"""The load balancer: round robin over the replicas, on one port, without a second try at another replica.

A second try would hide failed requests, so neither program makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.output import own_directory, write_file
from jobs.schema import Run
from jobs.settings.serving import Balancer
from jobs.work.serve.replicas import replicas_of

LONGEST_ANSWER = "1h"
REMEDY = "Install it, load it in cluster.modules, or set serving.balancer to another one."


def balancer_of(run: Run) -> Balancer:
    """Return the balancer of a run; by default `none` in front of one replica."""
    assert run.serving is not None
    return run.serving.balancer or (Balancer.haproxy if replicas_of(run) > 1 else Balancer.none)


def balancer_command(kind: Balancer, directory: Path, address: str, replicas: Sequence[str], load: int) -> list[str]:
    """Write the configuration of a balancer into a directory, and return its command.

    `address` is its HOST:PORT, `replicas` are those behind it, `load` is the number of concurrent requests.
    """
    text = {Balancer.haproxy: haproxy, Balancer.nginx: nginx}[kind](address, replicas, connections(load))
    file = directory / f"{kind.name}.conf"
    write_file(file, text, mode=0o600)
    if kind is Balancer.haproxy:
        # -db: in the foreground. A daemon would leave the session by which it is watched and ended.
        return ["haproxy", "-db", "-f", str(file)]
    # Names in its configuration are relative to this directory.
    own_directory(directory / "nginx")
    return ["nginx", "-p", f"{directory / 'nginx'}/", "-c", str(file), "-e", "stderr"]


def connections(load: int) -> int:
    """Return the connections of a balancer under a load: one from the client and one to a replica, and some spare."""
    return 2 * load + 256


def haproxy(address: str, replicas: Sequence[str], most: int) -> str:
    """Return the configuration of HAProxy.

    Without http-no-delay it holds tokens of a stream back for up to 200 ms, to send them together.
    """
    servers = "\n".join(f"    server replica-{number} {each}" for number, each in enumerate(replicas))
    return f"""\
global
    maxconn {most}
defaults
    mode http
    option http-no-delay
    retries 0
    timeout connect 30s
    timeout client {LONGEST_ANSWER}
    timeout server {LONGEST_ANSWER}
frontend load
    bind {address}
    default_backend replicas
backend replicas
    balance roundrobin
{servers}
"""


def nginx(address: str, replicas: Sequence[str], most: int) -> str:
    """Return the configuration of nginx; one worker, or each would count its own turns."""
    # max_fails=0: by default nginx leaves a server out for 10 s after one failure, and the others would get its load.
    servers = "\n".join(f"        server {each} max_fails=0;" for each in replicas)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"    {kind}_temp_path {kind};" for kind in kinds)
    return f"""\
daemon off;
worker_processes 1;
pid nginx.pid;
events {{ worker_connections {most}; }}
http {{
    access_log off;
{places}
    upstream replicas {{
{servers}
    }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout {LONGEST_ANSWER};
            proxy_next_upstream off;
        }}
    }}
}}
"""
