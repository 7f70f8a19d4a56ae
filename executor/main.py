"""The executor process: opens the engine, says Ready or Failed, and runs the loop."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import msgspec

from ..runtime.artifact import REQUIRED_FILES, open_engine
from ..runtime.errors import EnginewrightError
from ..runtime.session import Session, open_session
from .config import ExecutorConfig
from .disk_tier import DiskTier
from .draft_engine import DraftEngine
from .loop import PyExecutor
from .messages import ExecutorInfo, Failed, Ready, error_info
from .ngram_drafter import NgramDrafter
from .speculative import Drafter
from .transport import executor_channel
from .watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What a client tells the process it starts, as JSON in the last argument."""

    engine: str  # folder
    channel: int  # descriptor of its end of a pair of sockets
    config: ExecutorConfig


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A session that can run, and facts of its engine for people."""

    session: Session
    facts: dict[str, Any]
    tokenizer: Path | None = None  # folder of the engine's tokenizer
    identity: bytes = b""  # equal for engines that compute the same bits
    kv_block_bytes: int = 0
    pooling: Literal["last", "mean"] = "last"  # of an engine that embeds


Opener = Callable[[Path, ExecutorConfig], OpenedEngine]


def open_engine_session(folder: Path, config: ExecutorConfig) -> OpenedEngine:
    """Open an engine folder and its session. Raises EngineError and its kin, OutOfMemoryError."""
    engine = open_engine(folder)
    session = open_session(
        engine,
        threads=config.threads,
        numa=config.numa,
        kv_cache_memory=config.kv_cache_memory,
        max_batch_size=config.max_batch_size,
        max_num_tokens=config.max_num_tokens,
    )
    manifest = engine.manifest
    facts = {
        "name": manifest.name,
        "created": manifest.created,
        "producer": f"{manifest.producer.name} {manifest.producer.version}",
        "target": manifest.target.name,
        "isa": manifest.target.isa,
        "weights": manifest.quantization.weights,
        "kv": manifest.kv.dtype,
        "kv_block_bytes": manifest.kv.block_bytes,
        "parameters": manifest.source.parameters,
    }
    if manifest.embeds:
        facts |= {"task": "embed", "pooling": manifest.pooling}
    hashes = [manifest.files[name].sha256 for name in REQUIRED_FILES]
    return OpenedEngine(
        session,
        facts,
        engine.folder / "tokenizer",
        msgspec.json.encode([hashes, manifest.kv]),
        manifest.kv.block_bytes,
        manifest.pooling,
    )


def open_disk_tier(config: ExecutorConfig, opened: OpenedEngine) -> DiskTier | None:
    """Open the folder that keeps KV blocks, if there shall be one. Raises InputError."""
    if config.kv_cache_disk is None:
        return None
    return DiskTier(
        Path(config.kv_cache_disk),
        opened.identity,
        opened.kv_block_bytes,
        config.kv_cache_disk_size,
        opened.session,
    )


def open_drafter(config: ExecutorConfig, vocab_size: int) -> Drafter | None:
    """Open what guesses tokens, if anything shall. Raises EngineError and its kin, InputError."""
    if config.speculative is None:
        return None
    if config.speculative == "ngram":
        return NgramDrafter()
    engine = open_engine(Path(config.speculative))
    engine.manifest.check_generates()
    session = open_session(
        engine,
        threads=config.threads,
        numa=config.numa,
        max_batch_size=_at_most(config.max_batch_size, engine.manifest.limits.max_batch_size),
        max_num_tokens=_at_most(config.max_num_tokens, engine.manifest.limits.max_num_tokens),
    )
    try:
        return DraftEngine(session, vocab_size, engine.manifest.name)
    except BaseException:
        session.close()
        raise


def _at_most(wanted: int | None, most: int) -> int | None:
    return None if wanted is None else min(wanted, most)


def run(argument: str, opener: Opener) -> int:
    """Run an executor from its JSON options; returns the exit code.

    Ctrl-C is left to the client; SIGTERM ends the loop in order; the end of standard input means
    that the client is gone, and ends the process at once.
    """
    options = msgspec.json.decode(argument, type=ProcessOptions)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent watch", daemon=True).start()
    wake_read, wake_write = socket.socketpair()
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno())
    signal.signal(signal.SIGTERM, _end_at_once)
    channel = executor_channel(socket.socket(fileno=options.channel), wake_read.fileno())
    begun = time.monotonic()
    try:
        opened = opener(Path(options.engine), options.config)
        drafter = open_drafter(options.config, opened.session.limits.vocab_size)
        disk = open_disk_tier(options.config, opened)
    except Exception as error:
        if not isinstance(error, EnginewrightError):
            traceback.print_exc()
        channel.send(Failed(error_info(error)))
        channel.close()
        return error.exit_code if isinstance(error, EnginewrightError) else 1
    executor = PyExecutor(opened.session, channel, options.config, opened.tokenizer, drafter, disk)
    config = options.config
    Watchdog(lambda: executor.busy_since, config.hang_timeout, config.report_timeout)
    signal.signal(signal.SIGTERM, lambda number, frame: executor.stop())
    limits = opened.session.limits
    channel.send(
        Ready(
            ExecutorInfo(
                max_seq_len=limits.max_seq_len,
                max_batch_size=limits.max_batch_size,
                max_num_tokens=limits.max_num_tokens,
                num_blocks=limits.num_blocks,
                block_tokens=limits.block_tokens,
                vocab_size=limits.vocab_size,
                engine=opened.facts,
                open_seconds=time.monotonic() - begun,
                embedding_size=limits.embedding_size,
                pooling=opened.pooling,
            )
        )
    )
    gc.freeze()  # what is there now stays; collections need not look at it
    executor.run()
    if disk is not None:
        disk.close()
    opened.session.close()
    if drafter is not None:
        drafter.close()
    channel.close()
    return 0


def _end_with_parent() -> None:
    """Wait for the end of standard input; the client holds its other end and writes nothing."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[-1], open_engine_session))
