"""The soak over a compiled engine: `-m slow`, about two minutes.

As test_soak.py, but the answers' bits are compared: tokens and log-probabilities of every request
are those that it has alone, from a disk tier whose files are damaged meanwhile, with and without
guesses, beside logits processors that raise.
"""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.logits_processors import dump_processors
from enginewright.executor.sampling import Guided, TokenParams
from enginewright.runtime.artifact import Engine
from tests.executor.test_client import Sink, command, private_temp
from tests.executor.test_soak import CANARIES, Asked, Soak
from tests.support.cpu_engine import EngineCache, family_spec

__all__ = ["private_temp"]

SECONDS = 50.0
SPEC = family_spec("llama", "int8")
VOCAB = SPEC.model.vocab_size
BLOCKS = 24
Answer = tuple[list[int], list[float], str]


def forbid_even(tokens: list[int], logits: Any) -> None:
    logits[::2] = -1e9


def make_catalogue() -> list[tuple[list[int], TokenParams]]:
    """Return requests of every kind, many of which share a beginning."""
    shuffle = random.Random(1)
    starts = [[shuffle.randrange(VOCAB) for _ in range(70)] for _ in range(4)]
    found: list[tuple[list[int], TokenParams]] = []
    for number in range(40):
        start = starts[number % 4][: shuffle.randrange(71)]
        prompt = start + [shuffle.randrange(VOCAB) for _ in range(1 + shuffle.randrange(40))]
        params = TokenParams(
            max_tokens=1 + shuffle.randrange(50),
            temperature=shuffle.choice([0.0, 0.0, 0.9]),
            seed=number,
            repetition_penalty=shuffle.choice([1.0, 1.0, 1.2]),
            no_repeat_ngram_size=shuffle.choice([0, 0, 3]),
            num_logprobs=shuffle.choice([-1, 0, 2]),
            eos_token_ids=(5, 6, 7),
            priority=number % 3,
            tenant=f"t{number % 5}",
            logits_processor=dump_processors(forbid_even) if number % 10 == 9 else None,
        )
        found.append((prompt, params))
    return found


def alone(engine: Engine, requests: list[tuple[list[int], TokenParams]]) -> list[Answer]:
    """Return each request's answer when nobody else is there."""
    answers: list[Answer] = []
    config = ExecutorConfig(threads=1, max_batch_size=16, max_num_tokens=48)
    with ExecutorClient.start(engine.folder, config) as client:
        for number, (prompt, params) in enumerate(requests):
            sink = Sink()
            client.submit(str(number), prompt, params, sink)
            end = sink.end()
            answers.append((sink.tokens, sink.logprobs, str(end.finish_reason)))
    return answers


def raises(tokens: list[int], logits: Any) -> None:
    raise LookupError("on purpose")


BAD: list[tuple[list[int], TokenParams]] = [
    ([], TokenParams()),
    ([VOCAB], TokenParams()),
    ([1] * 100_000, TokenParams()),
    ([1], TokenParams(guided=Guided("regex", "("))),
    ([1], TokenParams(logits_processor=b"no pickle")),
    ([1, 2], TokenParams(max_tokens=9, logits_processor=dump_processors(raises))),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"capacity_policy": "max_utilization", "overlap": True, "speculative": "ngram"},
        {"chunk_policy": "equal_progress"},
    ],
)
def test_every_answer_has_the_bits_that_it_has_alone(
    engines: EngineCache, tmp_path: Path, options: dict[str, Any]
) -> None:
    engine = engines.get(SPEC)
    requests = make_catalogue()
    answers = alone(engine, requests)
    block = engine.manifest.kv.block_bytes
    config = ExecutorConfig(
        threads=1,
        max_batch_size=16,
        max_num_tokens=48,
        kv_cache_memory=BLOCKS * block,
        kv_cache_disk=str(tmp_path / "kv"),
        kv_cache_disk_size=60 * (block + 200),
        **options,
    )
    damaged: list[int] = []

    def traffic(number: int, shuffle: random.Random) -> Asked:
        if number >= CANARIES and shuffle.random() < 0.05:
            prompt, params = shuffle.choice(BAD)
            return prompt, params, expect_nothing
        place = number if number < CANARIES else shuffle.randrange(len(requests))
        if number == CANARIES and shuffle.random() < 0.3:
            damage(tmp_path, shuffle)
            damaged.append(1)
        prompt, params = requests[place]
        if number >= CANARIES:
            deadline = shuffle.choice([None, None, 0.5, 60.0])
            params = msgspec.structs.replace(params, deadline=deadline)

        def judge(sink: Sink, outcome: str) -> None:
            tokens, logprobs, reason = answers[place]
            count = len(sink.tokens)
            assert sink.tokens == tokens[:count], "other tokens than alone"
            if params.num_logprobs >= 0:
                assert sink.logprobs == logprobs[:count], "other bits than alone"
            if outcome in ("stop", "length"):
                assert (count, outcome) == (len(tokens), reason), "ended early"

        return prompt, params, judge

    client = ExecutorClient.start(engine.folder, config, command("faulty"))
    soak = Soak(client, traffic, SECONDS)
    stats = soak.go()
    assert (stats["pauses"] > 0) == (config.capacity_policy == "max_utilization")
    assert stats["disk_loaded_blocks"] > 0
    assert damaged
    assert stats["disk_bytes"] <= stats["disk_max_bytes"]


def expect_nothing(sink: Sink, outcome: str) -> None:
    """A bad request gets no token, and its own error unless it was cancelled."""
    assert sink.tokens == []
    expected = ("invalid_request", "context_length_exceeded", "cancelled", "overloaded")
    assert outcome in (*expected, "step_failed")


_damaging = threading.Lock()


def damage(folder: Path, shuffle: random.Random) -> None:
    """Flip a bit of some file, or cut it short."""
    with _damaging, contextlib.suppress(OSError):
        files = sorted(folder.rglob("*.kv"))
        path = shuffle.choice(files or [folder / "none"])
        data = bytearray(path.read_bytes())
        data[shuffle.randrange(len(data))] ^= 1 << shuffle.randrange(8)
        path.write_bytes(data[: len(data) - shuffle.choice([0, 0, 5])])
