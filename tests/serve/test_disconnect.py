"""A client that goes away takes its request with it, streaming or not."""

import json
import socket

import pytest

from .conftest import ANSWER, Served, wait_until

ENDPOINTS = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


def endless(path: str, stream: bool) -> dict[str, object]:
    return ENDPOINTS[path] | {"stream": stream, "max_tokens": 10_000, "ignore_eos": True, "n": 2}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_aborts_while_tokens_come(served: Served, path: str, stream: bool) -> None:
    served.client.step_seconds = 0.01
    with served.open_raw(path, endless(path, stream)) as raw:
        wait_until(lambda: len(served.client.submitted) == 2)
        if stream:
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: len(served.client.aborted) == 2)
    assert served.client.stats()["running"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_aborts_before_the_first_token(served: Served, stream: bool) -> None:
    served.client.gate.clear()
    with served.open_raw("/v1/completions", endless("/v1/completions", stream)):
        wait_until(lambda: len(served.client.submitted) == 2)
    wait_until(lambda: len(served.client.aborted) == 2)
    text = served.request("GET", "/metrics").body.decode()
    assert 'finished_reason="abort",model_name="fake"} 2.0' in text


def test_a_reset_connection_aborts(served: Served) -> None:
    served.client.step_seconds = 0.01
    raw = served.open_raw("/v1/completions", endless("/v1/completions", True))
    wait_until(lambda: len(served.client.submitted) == 2)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    raw.close()
    wait_until(lambda: len(served.client.aborted) == 2)


@pytest.mark.parametrize("stream", [False, True])
def test_finished_requests_are_not_aborted(served: Served, stream: bool) -> None:
    for path in ENDPOINTS:
        assert served.post(path, ENDPOINTS[path] | {"stream": stream}).status == 200
    assert served.client.aborted == []


def test_slow_reader_loses_nothing(served: Served) -> None:
    body = ENDPOINTS["/v1/completions"] | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    with served.open_raw("/v1/completions", body) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wait_until(lambda: served.client.stats()["running"] == 0)
        received = b""
        while b"[DONE]" not in received:
            received += raw.recv(1024)
    lines = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines]
    ids = (served.tokenizer.encode(ANSWER) * 40)[:400]
    assert "".join(texts) == served.tokenizer.decode(ids)
