"""A server with all its layers, over a fake executor."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import uvicorn
import uvloop

from enginewright.serve.app import create_app
from enginewright.serve.client import Client
from enginewright.serve.operation.config import ServeConfig
from enginewright.serve.operation.keys import KeyRing
from enginewright.serve.operation.layers import with_layers
from enginewright.serve.operation.request_log import Listener
from enginewright.serve.service import Service
from enginewright.serve.tokenizer import Tokenizer
from tests.serve.conftest import Served, wait_until
from tests.serve.fake_client import FakeClient

Operate = Callable[..., AbstractContextManager[Served]]


@contextmanager
def operated(
    client: Client,
    tokenizer: Tokenizer,
    config: ServeConfig | None = None,
    ring: KeyRing | None = None,
    listener: Listener | None = None,
) -> Iterator[Served]:
    """Run the application with its layers on a free port."""
    config = config or ServeConfig()
    service = Service(
        client, tokenizer, "fake", config.max_body_size, config.max_context, config.hang_timeout
    )
    app = create_app(service, dashboard=config.dashboard)
    layered = with_layers(app, service, config, ring or KeyRing({}), listener)
    options = uvicorn.Config(layered, http="httptools", lifespan="off", log_level="critical")
    server = uvicorn.Server(options)
    bound = socket.create_server(("127.0.0.1", 0))
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[bound])

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Served(bound.getsockname()[1], client, tokenizer, service, loops[0])
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        bound.close()


@pytest.fixture
def operate(fake: FakeClient, tokenizer: Tokenizer) -> Operate:
    """Start a server over the fake executor: `with operate(config, ring=...) as served`."""

    def start(config: ServeConfig | None = None, **options: Any) -> AbstractContextManager[Served]:
        return operated(fake, tokenizer, config, **options)

    return start
