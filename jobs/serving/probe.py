"""Requests to a replica or balancer: its health, and its counters."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

MOST_BYTES = 16 * 2**20


def is_healthy(url: str, path: str, within_s: float) -> bool:
    """Return True if a path of a server answers with status 200 in time."""
    return fetched(url, path, within_s) is not None


def fetched(url: str, path: str, within_s: float) -> bytes | None:
    """Return the answer of a server with status 200; None for another status, or without an answer in time."""
    # Not urllib, which would follow http_proxy of the environment.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=within_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if answer.status == http.HTTPStatus.OK else None
