"""Clients that go away: whoever they are, whatever they asked, the executor stops at once."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

import openai
import pytest

from .api import BODIES, running, wait_for_running
from .conftest import MODEL, Served

Client = Callable[[Served, str, bytes, bool], None]


def raw_socket(served: Served, path: str, body: bytes, stream: bool) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        wait_for_running(served, True)


def http_client(served: Served, path: str, body: bytes, stream: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("POST", path, body)
    if stream:
        reply = connection.getresponse()
        assert reply.read(16)
        reply.close()
    wait_for_running(served, True)
    connection.close()


def urllib_client(served: Served, path: str, body: bytes, stream: bool) -> None:
    request = urllib.request.Request(f"{served.url}{path}", body, method="POST")
    if stream:
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert reply.read(16)
            wait_for_running(served, True)
    else:
        with pytest.raises((TimeoutError, urllib.error.URLError)):
            urllib.request.urlopen(request, timeout=0.5)


@pytest.mark.parametrize("client", [raw_socket, http_client, urllib_client])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_leaving_frees_the_request(served: Served, path: str, stream: bool, client: Client) -> None:
    assert running(served) == 0
    client(served, path, json.dumps(BODIES[path] | {"stream": stream}).encode(), stream)
    wait_for_running(served, False)


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_leaves(served: Served, stream: bool) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            chunks = client.completions.create(
                model=MODEL,
                prompt="Count: 1, 2, 3,",
                max_tokens=2000,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(iter(chunks))
            wait_for_running(served, True)
            chunks.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(
                    model=MODEL,
                    prompt="Count: 1, 2, 3,",
                    max_tokens=2000,
                    timeout=0.5,
                    extra_body={"ignore_eos": True},
                )
    wait_for_running(served, False)


def test_many_leave_at_once(served: Served) -> None:
    body = json.dumps(BODIES["/v1/completions"] | {"stream": True, "n": 2}).encode()
    threads = [
        threading.Thread(target=raw_socket, args=(served, "/v1/completions", body, True))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_running(served, False)
