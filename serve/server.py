"""The HTTP server: uvicorn over one application, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
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
from .operation.config import ServeConfig
from .operation.keys import KeyRing
from .operation.layers import with_layers
from .operation.logs import set_up_logging
from .operation.tracing import make_tracer
from .service import Service
from .tokenizer import Tokenizer

_LOG = logging.getLogger("enginewright.server")
_GRACE_SECONDS = 2  # that the last words of requests have after the drain
_POLL_SECONDS = 0.02


def run_server(
    client: Client,
    tokenizer: Tokenizer,
    model_name: str,
    listener: socket.socket,
    config: ServeConfig,
    ring: KeyRing,
    started: float,
) -> None:
    """Serve until SIGTERM or SIGINT; `started` is when the command began (perf_counter)."""
    set_up_logging(config.log_format, config.log_level)
    service = Service(
        client,
        tokenizer,
        model_name,
        max_body_bytes=config.max_body_size,
        max_context=config.max_context,
        hang_timeout=config.hang_timeout,
        strict=config.strict,
        keep_alive_seconds=config.keep_alive or None,
    )
    endpoint = config.otlp_traces_endpoint
    tracer = None if endpoint is None else make_tracer(endpoint, model_name)
    app = create_app(service, dashboard=config.dashboard)
    options = uvicorn.Config(
        with_layers(app, service, config, ring, tracer),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    try:
        Server(options, service, config, started).run(sockets=[listener])
    finally:
        if tracer is not None:
            tracer.close()


class Server(uvicorn.Server):
    """A uvicorn server that says when it listens, drains, and ends normally on a signal."""

    def __init__(
        self, options: uvicorn.Config, service: Service, config: ServeConfig, started: float
    ) -> None:
        super().__init__(options)
        self._service = service
        self._settings = config
        self._begun = started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then say so."""
        self._loop = asyncio.get_running_loop()
        self._pulse = asyncio.create_task(self._service.probe.keep_asking())
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        opened = self._service.client.info.open_seconds * 1e3
        seconds = time.perf_counter() - self._begun
        click.echo(
            f"serving {self._service.model_name} at {self._settings.scheme}://{address} "
            f"(engine opened in {opened:.0f} ms, ready after {seconds:.2f} s); Ctrl-C ends it"
        )

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Drain at the first signal, stop at the second; neither is raised again afterwards."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take one signal."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._on_signal)

    def _on_signal(self) -> None:
        if self._drain is None:
            self._service.traffic.draining = True
            self._drain = asyncio.create_task(self._end())
        else:
            self._service.stop()
            self._drain.cancel()
            self.should_exit = self.force_exit = True

    async def _end(self) -> None:
        """Answer what is in flight, for a while; new work gets 503 meanwhile."""
        traffic = self._service.traffic
        if traffic.in_flight:
            _LOG.info(
                "draining %d requests for up to %g s; a second signal does not wait",
                traffic.in_flight,
                self._settings.drain_timeout,
            )
        await self._until_idle(self._settings.drain_timeout)
        if traffic.in_flight:
            _LOG.warning("ending %d requests that did not finish in time", traffic.in_flight)
            self._service.stop()
            await self._until_idle(_GRACE_SECONDS)
        self.should_exit = True

    async def _until_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._service.traffic.in_flight and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
