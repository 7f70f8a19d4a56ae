"""The HTTP server: uvicorn over one application, and its orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import click
import uvicorn

from .app import create_app
from .client import Client
from .service import Service
from .tokenizer import Tokenizer

DRAIN_SECONDS = 5  # that requests in flight have after the first signal
_GRACE_SECONDS = 2  # that their last words have after that


def run_server(
    client: Client, tokenizer: Tokenizer, model_name: str, listener: socket.socket, started: float
) -> None:
    """Serve until SIGTERM or SIGINT; `started` is when the command began (perf_counter)."""
    service = Service(client, tokenizer, model_name)
    config = uvicorn.Config(
        create_app(service),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS + _GRACE_SECONDS,
    )
    _Server(config, service, started).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens, drains, and ends normally on a signal."""

    def __init__(self, config: uvicorn.Config, service: Service, started: float) -> None:
        super().__init__(config)
        self._service = service
        self._begun = started
        self._ending: asyncio.AbstractEventLoop | None = None  # while it drains

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then say so."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        opened = self._service.client.info.open_seconds * 1e3
        seconds = time.perf_counter() - self._begun
        click.echo(
            f"serving {self._service.model_name} at http://{address} "
            f"(engine opened in {opened:.0f} ms, ready after {seconds:.2f} s); Ctrl-C ends it"
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, let requests finish for a while, then end them."""
        self._ending = asyncio.get_running_loop()
        timer = self._ending.call_later(DRAIN_SECONDS, self._service.stop)
        await super().shutdown(sockets)
        timer.cancel()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Drain at the first signal, stop at the second; neither is raised again afterwards."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take one signal."""
        if self._ending is not None:
            self.force_exit = True
            self._ending.call_soon_threadsafe(self._service.stop)
        self.should_exit = True
