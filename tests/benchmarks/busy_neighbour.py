"""Decode and prefill beside processes that keep cores busy: how much of its fair share is left.

    python -m tests.benchmarks.busy_neighbour ENGINE

Beside b busy processes the fair share of t threads on c cores is that of t among t + b, and
nothing is lost while all of them have a core.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from enginewright.runtime import machine
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session
from enginewright.serve.bench.engine import DECODE, PREFILL, EngineBench, EngineCase

CASES = (EngineCase(DECODE, 64, 0, 1), EngineCase(DECODE, 32, 0, 8), EngineCase(PREFILL, 256, 0, 1))
IDLE_SECONDS = 5


def _spin(stop: Event) -> None:
    number = 1
    while not stop.is_set():
        for _ in range(10_000):
            number = number * 1103515245 % 2147483647


@contextlib.contextmanager
def _neighbours(count: int) -> Iterator[None]:
    stop = multiprocessing.Event()
    spinning = [multiprocessing.Process(target=_spin, args=(stop,)) for _ in range(count)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        stop.set()
        for process in spinning:
            process.join()


def measure(folder: Path, threads: int, busy: int, repetitions: int) -> list[float]:
    """Return the tokens a second of every case, medians."""
    session: Any = open_session(open_engine(folder), threads=threads, kv_cache_memory=1 << 28)
    with contextlib.closing(session):
        session.settle()
        with _neighbours(busy):
            results = [EngineBench(session).run(case, repetitions, None) for case in CASES]
    return [statistics.median(result.to_json()["samples_ts"]) for result in results]


def idle(folder: Path) -> float:
    """Return the processor seconds that an open engine takes in a second without work."""
    session: Any = open_session(open_engine(folder), kv_cache_memory=1 << 28)
    with contextlib.closing(session):
        session.settle()
        EngineBench(session).run(CASES[0], 1, None)
        before = time.process_time()
        time.sleep(IDLE_SECONDS)
        return (time.process_time() - before) / IDLE_SECONDS


def main() -> None:
    """Print tokens a second, and in brackets the share of what a fair system would leave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    cores = machine.usable_cores()
    alone = measure(options.engine, cores, 0, options.repetitions)
    print(f"{cores} cores; decode at batch 1, decode at batch 8, prefill of 256, tokens a second")
    for threads in (cores, 2 * cores):
        for busy in range(cores + 1):
            fair = min(1.0, min(threads, cores) / cores, threads / (threads + busy))
            found = measure(options.engine, threads, busy, options.repetitions)
            shares = [
                f"{rate:.0f} ({rate / base / fair:.0%})"
                for rate, base in zip(found, alone, strict=True)
            ]
            print(f"{threads} threads, {busy} busy neighbours: {', '.join(shares)}", flush=True)
    print(f"idle: {idle(options.engine):.4f} processors")


if __name__ == "__main__":
    main()
