"""Whatever comes in, an answer goes out: no 5xx, no hang, and the model is not disturbed."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .api import BODIES, post, running
from .conftest import Served, start_server, stop_server

CANARY = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0, "logprobs": 3}
NUM_BODIES = 1000
WRONG = {
    "stream": ["yes", 1, []],
    "n": [1.5, "1", True, 0, -1, 10**9, 10**30, 10**400],
    "temperature": ["hot", -1, [], {}, 10**400],
    "top_p": [2, -0.1, "1", []],
    "top_k": [-2, 1.5, 2**31, 10**40],
    "min_p": [-1, 7],
    "seed": [2**64, 1.5, "x"],
    "stop": [5, [5], [None], {"a": 1}, ["x"] * 100, [""]],
    "stop_token_ids": [[-1], ["a"], 7, [2**40]],
    "logit_bias": [{"x": 1}, {"1": 1000}, {"-1": 1}, [1], {"999999999": 1}],
    "repetition_penalty": [0, -1, 1000],
    "presence_penalty": [3, "a"],
    "frequency_penalty": [-3, []],
    "min_tokens": [-1, 10**9, "a"],
    "priority": [1.5, 10**30],
    "timeout": [0, -1, "a", 1e300],
    "deadline_ms": [0, []],
    "bad_words": ["a", [5], [""]],
    "request_id": ["", "a b", "\n", "x" * 500, 5],
    "response_format": ["json", {}, {"type": "x"}, {"type": "json_schema"}, {"type": "regex"}],
    "guided_choice": [[], "a", [5]],
    "guided_regex": ["([", "*", 5],
    "guided_json": ["{", 5, '{"type": "nothing"}'],
    "guided_grammar": ["start: (", "", 5],
    "model": ["other", 5, []],
}


@pytest.fixture(scope="module")
def served(served_on_cpu: Served) -> Served:
    """What is refused, and what a schema describes, never depends on the engine."""
    return served_on_cpu


def one_wrong_body(path: str, rng: random.Random) -> bytes:
    """Return a body that no server may take."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = BODIES[path] | {limit: 4}
    good = json.dumps(body)
    kind = rng.randrange(8)
    if kind == 0:
        return good[: rng.randrange(len(good) - 1)].encode()
    if kind == 1:
        return bytes(rng.randrange(128, 256) for _ in range(rng.randrange(1, 60)))
    if kind == 2:
        place = rng.randrange(1, len(good) - 1)
        bad = rng.choice([b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
        return good[:place].encode() + bad + good[place:].encode()
    if kind == 3:
        number = rng.choice(["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-", "0x1"])
        field = rng.choice(["temperature", "top_p", "min_p", "repetition_penalty"])
        return f'{{"{field}": {number}, {good[1:]}'.encode()
    if kind == 4:
        opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
        depth = rng.choice([2_000, 20_000, 100_000])
        deep = opening * depth + ("1" if rng.random() < 0.5 else "") + closing * depth
        field = rng.choice(["prompt", "messages", "input", "response_format", "stop"])
        return f'{{"{field}": {deep}}}'.encode()
    if kind == 5:
        return rng.choice([b"", b"[]", b"null", b"5", b'"text"', b"{}", b"true", b"[{}]"])
    field = rng.choice(list(WRONG))
    value: Any = rng.choice(WRONG[field])
    return json.dumps(body | {field: value}).encode()


def test_malformed_bodies_are_refused_and_disturb_nobody(served: Served) -> None:
    _, before = post(served, "/v1/completions", CANARY)
    rng = random.Random(5)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    counts: dict[int, int] = {}
    for number in range(NUM_BODIES):
        path = rng.choice(list(BODIES))
        body = one_wrong_body(path, rng)
        connection.request("POST", path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        counts[reply.status] = counts.get(reply.status, 0) + 1
        assert 400 <= reply.status < 500, (number, path, body[:300], text[:300])
        error = json.loads(text)["error"]
        assert {"message", "type", "param", "code"} <= set(error)
    connection.close()
    print(f"answers by status: {counts}")
    for path in BODIES:
        status, answer = post(served, path, b'{"a": "' + b"x" * (9 << 20) + b'"}')
        assert (status, answer["error"]["code"]) == (413, "content_too_large")
    _, after = post(served, "/v1/completions", CANARY)
    assert after["choices"] == before["choices"]
    assert running(served) == 0


@pytest.fixture(scope="module")
def small_server(smollm2_engine: Path) -> Iterator[Served]:
    """A server whose answers are short, so that requests without a limit end soon."""
    server = start_server(
        smollm2_engine, "--max-context", "80", "--max-batch-size", "8", "--log-level", "error"
    )
    yield server
    assert stop_server(server) == 0


def run_schemathesis(served: Served, *options: str) -> None:
    """Run schemathesis over the served description.

    Valid data may be refused for what a schema does not say: an empty prompt, two constraints.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"]
    command += ["--exclude-checks", "positive_data_acceptance", "--suppress-health-check", "all"]
    command += ["--request-timeout", "30", "--warnings", "off", *options]
    with tempfile.TemporaryDirectory() as folder:  # schemathesis keeps what it found there
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=1800, cwd=folder
        )
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert running(served) == 0


def test_schemathesis(small_server: Served) -> None:
    run_schemathesis(
        small_server, "--phases", "fuzzing", "--max-examples", "12", "--seed", "1", "--no-shrink"
    )


def test_schemathesis_of_an_engine_that_embeds(smollm2_embed_engine: Path) -> None:
    server = start_server(smollm2_embed_engine, "--max-context", "80", "--log-level", "error")
    try:
        run_schemathesis(
            server,
            *("--include-path", "/v1/embeddings", "--phases", "coverage,fuzzing"),
            *("--max-examples", "30", "--seed", "1", "--no-shrink"),
        )
    finally:
        assert stop_server(server) == 0


@pytest.mark.slow
def test_schemathesis_at_length(small_server: Served) -> None:
    run_schemathesis(
        small_server, "--phases", "coverage,fuzzing", "--max-examples", "30", "--workers", "4"
    )
