"""Options of `enginewright serve` that only a running server can show, through the command."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .api import post
from .conftest import Served, start_server, stop_server


@pytest.fixture(scope="module")
def served(served_on_cpu: Served) -> Served:
    """Options of the HTTP process are the same for every engine."""
    return served_on_cpu


@pytest.fixture(scope="module")
def strict(smollm2_engine: Path) -> Iterator[Served]:
    """A strict server whose silent streams speak up very soon."""
    server = start_server(smollm2_engine, "--strict", "--keep-alive", "0.02")
    yield server
    assert stop_server(server) == 0


def test_strict_refuses_unknown_fields(strict: Served, served: Served) -> None:
    body = {"prompt": "Hi", "max_tokens": 2, "flux": 1}
    status, answer = post(strict, "/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "flux")
    status, _ = post(served, "/v1/completions", body)
    assert status == 200
    del body["flux"]
    assert post(strict, "/v1/completions", body)[0] == 200


@pytest.mark.parametrize("speaks", [True, False], ids=["0.02 s", "the default"])
def test_a_long_prefill_is_not_silent(strict: Served, served: Served, speaks: bool) -> None:
    """The stream opens before its first token, with comments, and gives the same text."""
    body = {
        "prompt": [number % 400 + 100 for number in range(1500)],
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "cache_salt": f"keep-alive {speaks}",
    }
    connection = http.client.HTTPConnection(
        "127.0.0.1", (strict if speaks else served).port, timeout=120
    )
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    assert reply.status == 200
    text = reply.read().decode()
    connection.close()
    assert text.startswith(": keep-alive\n\n") == speaks
    assert text.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
