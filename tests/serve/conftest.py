"""A real uvicorn on a loopback port, over a fake executor."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from enginewright.executor.sampling import TokenParams
from enginewright.serve.app import create_app
from enginewright.serve.client import Client
from enginewright.serve.service import Service
from enginewright.serve.tokenizer import Tokenizer

from .fake_client import FakeClient
from .tiny_tokenizer import make_tokenizer

ANSWER = "Hello wörld 😀, how are you today?"


@dataclass
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of all server-sent events but the last, which must be [DONE]."""
        events = self.body.decode().split("\n\n")
        assert events[-1] == ""
        assert all(event.startswith("data: ") for event in events[:-1])
        assert events[-2] == "data: [DONE]"
        return [json.loads(event[6:]) for event in events[:-2]]


@dataclass
class Served:
    """A running server and what is behind it."""

    port: int
    client: Any  # a FakeClient where a test looks into it
    tokenizer: Tokenizer
    service: Service
    loop: asyncio.AbstractEventLoop

    def request(self, method: str, path: str, body: Any = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, raw, {"content-type": "application/json"})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Reply:
        return self.request("POST", path, body)

    def open_raw(self, path: str, body: Any) -> socket.socket:
        """Send a request and return the socket, nothing read."""
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(head.encode() + raw)
        return connection


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; a test that waits in vain fails."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def fake(tokenizer: Tokenizer) -> Iterator[FakeClient]:
    ids = tokenizer.encode(ANSWER)

    def reply(prompt: list[int], params: TokenParams) -> list[int]:
        if params.eos_token_ids:
            return [*ids, params.eos_token_ids[0]]
        return ids * 40

    client = FakeClient(reply)
    yield client
    client.shutdown()


@contextmanager
def serve_app(client: Client, tokenizer: Tokenizer) -> Iterator[Served]:
    """Run the application on a free port."""
    service = Service(client, tokenizer, "fake", max_body_bytes=200_000)
    config = uvicorn.Config(
        create_app(service), http="httptools", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Served(listener.getsockname()[1], client, tokenizer, service, loops[0])
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def served(fake: FakeClient, tokenizer: Tokenizer) -> Iterator[Served]:
    with serve_app(fake, tokenizer) as served:
        yield served
        fake.gate.set()
