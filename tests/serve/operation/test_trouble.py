"""What clients see when things go wrong under load: each test states it in its name."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.serve.tokenizer import Tokenizer
from tests.serve.conftest import Reply, Served, wait_until

from .conftest import operated

TOY = (sys.executable, str(Path(__file__).parents[1] / "toy_executor.py"))
STREAM = {"prompt": [5], "stream": True, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ExecutorClient]:
    config = ExecutorConfig(max_queue=2)
    with ExecutorClient.start(tmp_path, config, command=TOY) as client:
        yield client


@pytest.fixture
def toy(client: ExecutorClient, tokenizer: Tokenizer) -> Iterator[Served]:
    """Steps of at most 4 sequences, a queue of 2."""
    with operated(client, tokenizer) as served:
        yield served


def in_threads(
    served: Served, count: int, body: object
) -> tuple[list[threading.Thread], list[Reply]]:
    replies: list[Reply] = []

    def one() -> None:
        replies.append(served.post("/v1/completions", body))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, replies


def test_kill_9_of_the_executor_ends_every_answer_with_an_error(
    client: ExecutorClient, toy: Served
) -> None:
    """Streams end with an error event and [DONE]; whole answers, and new requests, get 503."""

    def running(count: int) -> Callable[[], bool]:
        return lambda: (toy.service.probe.ask(5) or {"running": 0})["running"] == count

    # No more at a time than the queue takes, even if the executor is slow to look at it.
    threads, replies = in_threads(toy, 2, STREAM)
    wait_until(running(2))
    whole_threads, whole = in_threads(toy, 2, STREAM | {"stream": False})
    wait_until(running(4))
    last, last_reply = in_threads(toy, 1, STREAM)
    wait_until(lambda: toy.service.traffic.in_flight == 5)
    os.kill(client.pid, signal.SIGKILL)
    begun = time.monotonic()
    for thread in threads + whole_threads + last:
        thread.join()
    assert time.monotonic() - begun < 15
    for reply in replies + last_reply:
        if reply.status == 200:
            assert reply.events[-1]["error"]["code"] == "executor_died"
        else:  # it had not opened its stream yet
            assert (reply.status, reply.json["error"]["code"]) == (503, "executor_died")
    for reply in whole:
        assert (reply.status, reply.json["error"]["code"]) == (503, "executor_died")
        assert reply.headers["retry-after"] == "1"
    assert toy.request("GET", "/health").status == 503
    assert toy.request("GET", "/health/ready").status == 503
    assert toy.request("GET", "/metrics").status == 200
    assert toy.request("GET", "/dashboard/state").json["status"] == "dead"
    assert toy.post("/v1/completions", STREAM).status == 503


def test_a_stopped_executor_is_hung_and_metrics_still_answer(
    client: ExecutorClient, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from enginewright.serve import executor_metrics
    from enginewright.serve.operation.config import ServeConfig

    monkeypatch.setattr(executor_metrics, "_PATIENCE_SECONDS", 0.05)
    with operated(client, tokenizer, ServeConfig(hang_timeout=0.3)) as toy:
        os.kill(client.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: toy.request("GET", "/health").status == 503)
            assert toy.request("GET", "/health").json["error"]["code"] == "executor_hung"
            text = toy.request("GET", "/metrics").body.decode()
            assert 'enginewright_up{engine="0",model_name="fake"} 0.0' in text
        finally:
            os.kill(client.pid, signal.SIGCONT)
        wait_until(lambda: toy.request("GET", "/health").status == 200)
        assert toy.post("/v1/completions", STREAM | {"max_tokens": 2}).status == 200


def test_a_full_queue_answers_429_with_retry_after(toy: Served) -> None:
    """4 run, 2 wait; others are told to come back before a stream opens, and nobody is hurt."""
    threads, replies = in_threads(toy, 16, STREAM)
    for thread in threads:
        thread.join()
    refused = [reply for reply in replies if reply.status == 429]
    answered = [reply for reply in replies if reply.status == 200]
    assert refused
    assert len(refused) + len(answered) == 16
    for reply in refused:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json["error"]["type"] == "rate_limit_error"
    for reply in answered:
        assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
    text = toy.request("GET", "/metrics").body.decode()
    assert 'code="overloaded",engine="0",http_code="429"' in text
    assert 'enginewright_rejected_requests_total{cause="overloaded"' in text


def test_a_client_that_does_not_read_holds_up_nobody(toy: Served) -> None:
    """Its blocks are free when its answer is computed, others go on, and it loses nothing."""
    with toy.open_raw("/v1/completions", STREAM) as lazy:
        assert toy.post("/v1/completions", STREAM | {"max_tokens": 50}).status == 200
        wait_until(lambda: (toy.service.probe.ask(5) or {"running": 1})["running"] == 0)
        received = b""
        while b"[DONE]" not in received:
            received += lazy.recv(65536)
    lines = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    tokens = [json.loads(line[6:])["choices"][0]["text"] for line in lines]
    expected = [(5 + 1 + number) % 300 for number in range(400)]
    assert "".join(tokens) == toy.tokenizer.decode(expected)


def test_a_client_that_never_reads_is_let_go_when_it_leaves(toy: Served) -> None:
    lazy = toy.open_raw("/v1/completions", STREAM)
    wait_until(lambda: toy.service.traffic.in_flight == 1)
    lazy.close()
    wait_until(lambda: toy.service.traffic.in_flight == 0)
    wait_until(lambda: (toy.service.probe.ask(5) or {"used_blocks": 1})["used_blocks"] == 0)


def test_connections_without_a_request_cost_nothing(toy: Served) -> None:
    import socket

    idle = [socket.create_connection(("127.0.0.1", toy.port)) for _ in range(50)]
    connection = http.client.HTTPConnection("127.0.0.1", toy.port, timeout=20)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    for one in idle:
        one.close()
