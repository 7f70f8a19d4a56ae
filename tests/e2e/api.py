"""What the API tests share: plain requests, and how many sequences the executor runs."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from typing import Any

from .conftest import Served

ENDLESS = {"max_tokens": 2000, "temperature": 0, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Count: 1, 2, 3,", **ENDLESS},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], **ENDLESS},
    "/v1/responses": {
        "input": "Hi",
        **{k: v for k, v in ENDLESS.items() if k != "max_tokens"},
        "max_output_tokens": 2000,
    },
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], **ENDLESS},
}


def post(served: Served, path: str, body: Any, timeout: float = 60) -> tuple[int, Any]:
    """Send JSON, or bytes as they are; return the status and the answer's JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=timeout)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, raw, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def running(served: Served) -> float:
    """Return how many sequences run or wait, from /metrics."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=20) as reply:
        lines = reply.read().decode().splitlines()
    names = ("enginewright_num_requests_running", "enginewright_num_requests_waiting")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


def wait_for_running(served: Served, wanted: bool) -> None:
    """Wait until something runs, or until nothing does."""
    deadline = time.monotonic() + 60
    while (running(served) > 0) != wanted:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
