"""A soak with faults over a real process: `-m slow`, about two minutes; the engine is a fake.

200 clients at once, random aborts and bad requests, failing steps, a KV cache that is too small;
canaries ask the same again and again and get the same tokens.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.errors import RequestError
from enginewright.runtime.session import SessionLimits
from tests.executor.test_client import Sink, command, private_temp
from tests.support.fake_session import expected_tokens

__all__ = ["private_temp"]

SECONDS = 50.0
CANARIES = 10  # of the clients
SHOWN = ("steps", "failed_steps", "pauses", "disk_loaded_blocks", "disk_damaged_files")
PATIENCE = 120.0  # seconds that a client waits for news; a queue of 200 behind 30 blocks is slow
CLIENTS = 200
EXPECTED_OUTCOMES = {
    "stop",
    "length",
    "cancelled",
    "step_failed",
    "deadline_exceeded",
    "overloaded",
    "invalid_request",
    "context_length_exceeded",
}
LIMITS = SessionLimits(16, 48, 4096, 30, 32, 101)
CANARY = ([5, 4, 3, 2, 1] * 14, TokenParams(max_tokens=30, temperature=0.7, seed=11))


Judge = Callable[[Sink, str], None]  # of all news of a request, and how it ended
Asked = tuple[list[int], TokenParams, Judge]


class Soak:
    """What the clients found, together; `traffic` says what a client asks next."""

    def __init__(
        self, client: ExecutorClient, traffic: Callable[[int, random.Random], Asked], seconds: float
    ) -> None:
        self.client = client
        self.traffic = traffic
        self.seconds = seconds
        self.lock = threading.Lock()
        self.count = 0
        self.outcomes: dict[str, int] = {}
        self.errors: list[str] = []
        self.sinks: list[Sink] = []
        self.longest_wait = 0.0  # seconds from a request's submission to its end

    def go(self) -> dict[str, Any]:
        """Let 200 clients ask until the time is over; look at the books, and return the stats."""
        ends = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self.run, args=(n, ends)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + PATIENCE)
            assert not thread.is_alive(), "a request never ended"
        stats = self.client.stats()
        names = [name for name in SHOWN if name in stats]
        print(f"{self.count} requests, longest {self.longest_wait:.1f} s", self.outcomes)
        print({name: stats[name] for name in names})
        self.client.shutdown()
        assert self.errors == []
        assert all(sink.queue.empty() for sink in self.sinks), "news after the end"
        assert {"stop", "length", "cancelled", "step_failed"} <= self.outcomes.keys()
        assert self.outcomes.keys() <= EXPECTED_OUTCOMES
        assert stats["failed_steps"] > 0
        assert (stats["running"], stats["waiting"], stats["used_blocks"]) == (0, 0, 0)
        assert sum(stats["ended"].values()) == stats["submitted"]
        return stats

    def run(self, number: int, ends: float) -> None:
        """Be one client until the time is over."""
        shuffle = random.Random(number)
        try:
            while time.monotonic() < ends:
                self.ask(number, shuffle)
        except Exception as error:
            with self.lock:
                self.errors.append(f"client {number}: {type(error).__name__}: {error!r}")

    def ask(self, number: int, shuffle: random.Random) -> None:
        """Send one request and judge the answer."""
        with self.lock:
            self.count += 1
            name = f"r{self.count}"
        prompt, params, judge = self.traffic(number, shuffle)
        sink, begun = Sink(PATIENCE), time.monotonic()
        try:
            self.client.submit(name, prompt, params, sink)
        except RequestError:
            return
        if number >= CANARIES and shuffle.random() < 0.2:
            time.sleep(shuffle.random() * 0.1)
            self.client.abort(name)
        end = sink.end()
        outcome = str(end.finish_reason if end.error is None else end.error.code)
        with self.lock:
            self.sinks.append(sink)
            self.longest_wait = max(self.longest_wait, time.monotonic() - begun)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome == "overloaded":
            time.sleep(0.1)
        judge(sink, outcome)


def fake_traffic(number: int, shuffle: random.Random) -> Asked:
    """Return a random request, whose answer is known; the first clients are canaries."""
    prompt, params = CANARY
    if number >= CANARIES:
        shared = [number % 7] * shuffle.randrange(100)
        prompt = [*shared, *(shuffle.randrange(101) for _ in range(1 + shuffle.randrange(90)))]
        params = TokenParams(
            max_tokens=1 + shuffle.randrange(150),
            seed=shuffle.randrange(5),
            temperature=shuffle.choice([0.0, 1.0]),
            eos_token_ids=(3,),
            priority=shuffle.randrange(2),
            tenant=f"t{number % 5}",
            deadline=shuffle.choice([None, None, 0.5, 60.0]),
        )
        if shuffle.random() < 0.05:
            prompt = shuffle.choice([[], [101], [1] * 5000])

    def judge(sink: Sink, outcome: str) -> None:
        expected, reason = expected_tokens(prompt, params, LIMITS) if sink.tokens else ([], "")
        assert sink.tokens == expected[: len(sink.tokens)], "other tokens than alone"
        if outcome in ("stop", "length"):
            assert (sink.tokens, outcome) == (expected, reason), "ended early"

    return prompt, params, judge


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ExecutorConfig(
            max_batch_size=16,
            max_num_tokens=48,
            capacity_policy="max_utilization",
            overlap=True,
            max_queue=150,
        ),
        ExecutorConfig(max_batch_size=16, max_num_tokens=48, chunk_policy="equal_progress"),
    ],
)
def test_nothing_is_lost_doubled_or_leaked(config: ExecutorConfig) -> None:
    client = ExecutorClient.start("some/engine", config, command("soak"))
    stats = Soak(client, fake_traffic, SECONDS).go()
    assert (stats["pauses"] > 0) == (config.capacity_policy == "max_utilization")
