"""`enginewright serve`: an engine behind OpenAI's HTTP API."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ...runtime.errors import InputError
from ..operation.config_file import ENVIRONMENT_PREFIX
from ..operation.keys import make_ring
from .options import engine_options
from .scheduling_options import scheduling_options, take_executor_config
from .serve_options import serve_options, take_serve_config

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


@click.command(
    context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX},
    epilog="Every option is read from ENGINEWRIGHT_<OPTION> too. A flag goes before the "
    "environment, that before --config, and that before the default.",
)
@engine_options
@scheduling_options
@serve_options
def command(engine: Path, **options: Any) -> None:
    """Serve ENGINE until SIGTERM or Ctrl-C; a second signal does not wait for what runs."""
    started = time.perf_counter()
    from ...executor.client import ExecutorClient
    from ...executor.supervisor import SupervisedClient
    from ..operation.warm_prompts import read_warm_prompts, warm_up

    restart, warm_prompts = options.pop("restart"), options.pop("warm_prompts")
    prompts = [] if warm_prompts is None else read_warm_prompts(warm_prompts)
    config = take_serve_config(options)
    ring = make_ring(config.api_key, config.api_key_file)
    executor_config = replace(take_executor_config(options), report_timeout=config.hang_timeout)
    signal.signal(signal.SIGTERM, _end_at_once)
    with _bind(config.host, config.port) as listener, ThreadPoolExecutor(1) as pool:
        preparing = pool.submit(_prepare, engine)  # while the executor opens the engine

        def start() -> ExecutorClient:
            client = ExecutorClient.start(engine, executor_config)
            try:
                warm_up(client, preparing.result()[1], prompts)
            except BaseException:
                client.shutdown()
                raise
            return client

        client = SupervisedClient(start) if restart else start()
        try:
            run_server, tokenizer = preparing.result()
            named = config.served_model_name or client.info.engine.get("name")
            name = named or engine.resolve().name
            run_server(client, tokenizer, name, listener, config, ring, started)
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
