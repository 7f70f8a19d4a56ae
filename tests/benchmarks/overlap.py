"""Generation with and without overlap: `python -m tests.benchmarks.overlap ENGINE`.

Prints tokens a second, and the host's time a step: what passes outside of waiting for the device,
also as a share of the step.
The ways are run in turn, and the best run of each counts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.loop import PyExecutor
from enginewright.executor.messages import Submit
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import open_session
from tests.benchmarks.scheduler import EncodingChannel

WAYS = {
    "plain": (False, False),
    "own threads": (False, True),
    "overlap": (True, False),
    "overlap, own threads": (True, True),
}
STEPS = 48
REPEATS = 3


def measure(engine: Path, way: str, running: int) -> tuple[float, float, float]:
    """Return tokens a second, and the host's time: milliseconds a step, and share of the whole."""
    overlap, own_threads = WAYS[way]
    session = open_session(
        open_engine(engine), own_threads=own_threads, kv_cache_memory=512 << 20, max_num_tokens=256
    )
    channel = EncodingChannel()
    executor = PyExecutor(session, channel, ExecutorConfig(overlap=overlap))
    params = TokenParams(max_tokens=STEPS + 20)
    for number in range(running):
        prompt = [(number * 131 + i * 17) % 1000 + 5 for i in range(24)]
        channel.commands.append(Submit(str(number), prompt, params, 0.0))
    executor.fetch()
    while executor.stats.generation_tokens < 3 * running:
        executor.step()
    device = executor._device  # pyright: ignore[reportPrivateUsage]
    begun, waited = time.perf_counter(), device.waited_seconds
    for _ in range(STEPS):
        executor.fetch()
        executor.step()
    seconds = time.perf_counter() - begun
    host = seconds - (device.waited_seconds - waited)
    executor.scheduler.abort_all(0.0)
    while not executor.scheduler.idle:
        executor.step()
    session.close()
    return STEPS * running / seconds, host / STEPS * 1e3, host / seconds


def main() -> None:
    """Print a table."""
    engine = Path(sys.argv[1])
    print(f"{'running':>7}  {'way':<22}{'tokens/s':>10}{'host ms a step':>16}{'share':>8}")
    for running in (1, 8, 32):
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(REPEATS):
            for way in WAYS:
                best[way] = max(best.get(way, (0.0, 0.0, 0.0)), measure(engine, way, running))
        for way, (rate, host, share) in best.items():
            print(f"{running:>7}  {way:<22}{rate:>10.1f}{host:>16.3f}{share:>8.1%}")


if __name__ == "__main__":
    main()
