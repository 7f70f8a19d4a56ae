"""`enginewright serve`: an engine behind OpenAI's HTTP API."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ...runtime.errors import InputError
from .options import engine_options

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


@click.command()
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--served-model-name", help="The model's name for clients; the engine's by default.")
def command(
    engine: Path, host: str, port: int, served_model_name: str | None, **options: Any
) -> None:
    """Serve ENGINE until SIGTERM or Ctrl-C; a second signal does not wait for what runs."""
    started = time.perf_counter()
    from ...executor.client import ExecutorClient
    from ...executor.config import ExecutorConfig

    config = ExecutorConfig(**options)
    signal.signal(signal.SIGTERM, _end_at_once)
    with _bind(host, port) as listener, ThreadPoolExecutor(1) as pool:
        preparing = pool.submit(_prepare, engine)  # while the executor opens the engine
        client = ExecutorClient.start(engine, config)
        try:
            run_server, tokenizer = preparing.result()
            name = served_model_name or client.info.engine.get("name") or engine.resolve().name
            run_server(client, tokenizer, name, listener, started)
        finally:
            client.shutdown()


def _prepare(engine: Path) -> tuple[Callable[..., None], Tokenizer]:
    from ..server import run_server
    from ..tokenizer import Tokenizer

    return run_server, Tokenizer(engine / "tokenizer")


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds the address; it listens when the server starts."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port"
        ) from error
    return listener


def _end_at_once(sig: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
