"""Logits processors through the loop: the right tokens, and a bad one harms its request alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from enginewright.executor.logits_processors import LogitsProcessor, Processors, dump_processors
from enginewright.executor.ngram_drafter import NgramDrafter
from enginewright.executor.sampling import SamplingParams, TokenParams
from enginewright.runtime.errors import RequestError
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens

VOCAB = 101


def count_up(tokens: list[int], logits: Any) -> None:
    """Let nothing but the last token plus one come next."""
    logits[:] = -np.inf
    logits[(tokens[-1] + 1) % VOCAB] = 0


class Budget:
    """Raises after some calls; every request has its own copy."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, tokens: list[int], logits: Any) -> Any:
        self.calls -= 1
        if self.calls < 0:
            raise ValueError("no calls left")
        changed = np.full(len(logits), -1.0)
        changed[42] = 1
        return changed


def params_of(*processors: LogitsProcessor, **options: Any) -> TokenParams:
    given = SamplingParams(logits_processor=list(processors), temperature=0.0, **options)
    given.validate()
    return given.resolve()


def run(harness: Harness) -> None:
    """Run to the end, which comes after the processors have been loaded on their thread."""
    while harness.channel.commands or harness.executor._intake:
        harness.executor.fetch()
        time.sleep(0.001)
    harness.run()


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("overlap", [False, True])
def test_processors_rule_their_request_and_nobody_elses(overlap: bool, policy: str) -> None:
    limits = make_limits(max_batch_size=8, num_blocks=24)
    harness = Harness(limits, overlap=overlap, capacity_policy=policy)
    plain = [TokenParams(max_tokens=12), TokenParams(max_tokens=9, temperature=0.8, seed=4)]
    for number, params in enumerate(plain):
        harness.submit(f"plain{number}", [number, 7, 7], params)
    harness.step()
    harness.submit("up", list(range(20)), params_of(count_up, max_tokens=10))
    harness.submit("late", [5], params_of(count_up, max_tokens=3, min_tokens=2))
    harness.submit("chain", [5], params_of(count_up, Budget(99), max_tokens=4))
    run(harness)
    assert harness.tokens("up") == list(range(20, 30))
    assert harness.tokens("late") == [6, 7, 8]
    assert harness.tokens("chain") == [42] * 4
    for number, params in enumerate(plain):
        expected = expected_tokens([number, 7, 7], params, limits)[0]
        assert harness.tokens(f"plain{number}") == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_a_processor_that_raises_ends_its_request_alone(overlap: bool) -> None:
    harness = Harness(make_limits(max_batch_size=8), overlap=overlap)
    params = params_of(Budget(3), max_tokens=9)
    harness.submit("bad", [1], params)
    harness.submit("again", [1], params)  # a copy of its own
    harness.submit("shape", [2], params_of(lambda tokens, logits: logits[1:], max_tokens=2))
    harness.submit("nothing", [2], params_of(lambda _, logits: np.full_like(logits, -np.inf)))
    harness.submit("plain", [3], TokenParams(max_tokens=20))
    run(harness)
    for name, words in (
        ("bad", "The logits processor Budget raised ValueError: no calls left"),
        ("again", "no calls left"),
        ("shape", "returned shape .100,., expected .101,."),
        ("nothing", "leave no token"),
    ):
        error = harness.end(name).error
        assert error is not None
        with pytest.raises(RequestError, match=words):
            raise RequestError(error.message)
    assert harness.tokens("bad") == harness.tokens("again") == [42] * 3
    expected = expected_tokens([3], TokenParams(max_tokens=20), harness.limits)[0]
    assert harness.tokens("plain") == expected
    assert harness.executor.scheduler.report.gauges()["used_blocks"] == 0
    assert harness.stats()["failed_steps"] == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("verb", ["launch", "sample", "wait", "sample_logits"])
def test_a_failing_step_with_processors_leaves_the_device(verb: str, overlap: bool) -> None:
    harness = Harness(make_limits(max_batch_size=2), overlap=overlap)
    harness.submit("up", [1], params_of(count_up, max_tokens=9))
    harness.submit("plain", [3], TokenParams(max_tokens=9))
    harness.submit("later", [5], params_of(count_up, max_tokens=4))
    while not harness.outputs["up"]:
        harness.executor.fetch()
        harness.step()
    harness.session.fail_next = verb
    run(harness)
    assert [harness.end(name).finish_reason for name in ("up", "plain", "later")] == [
        "error",
        "error",
        "length",
    ]
    assert harness.tokens("later") == [6, 7, 8, 9]
    assert harness.stats()["failed_steps"] == 1


def test_drafts_and_prompt_logprobs_go_beside_processors() -> None:
    harness = Harness(make_limits(max_batch_size=16))
    harness.executor._speculator = None
    from enginewright.executor.speculative import Speculator

    harness.executor._speculator = Speculator(NgramDrafter(), 4)
    harness.submit("up", [1, 2, 3, 4], params_of(count_up, max_tokens=12))
    params = params_of(count_up, max_tokens=3, prompt_logprobs=1, logprobs=0)
    harness.submit("judged", [9, 10, 9, 10], params)
    harness.submit("plain", [3, 3, 3], TokenParams(max_tokens=20))
    run(harness)
    assert harness.tokens("up") == list(range(5, 17))
    assert harness.tokens("judged") == [11, 12, 13]
    judged = harness.outputs["judged"][0].prompt_logprobs
    assert judged is not None
    assert [one.token_id for one in judged] == [10, 9, 10]
    expected = expected_tokens([3, 3, 3], TokenParams(max_tokens=20), harness.limits)[0]
    assert harness.tokens("plain") == expected


def test_an_abort_while_a_processor_is_loaded_ends_the_request() -> None:
    harness = Harness(make_limits())
    gate = threading.Event()
    harness.submit("a", [1], params_of(count_up, max_tokens=3))
    harness.executor.fetch()
    harness.abort("a")
    harness.executor.fetch()
    gate.set()
    harness.collect()
    assert harness.end("a").finish_reason == "cancelled"
    assert harness.executor.scheduler.idle


def test_what_cannot_be_called_sent_or_loaded_is_refused() -> None:
    with pytest.raises(RequestError, match="logits_processor is a int") as raised:
        params_of(3)  # type: ignore[arg-type]
    assert raised.value.param == "logits_processor"
    lock = threading.Lock()
    with pytest.raises(RequestError, match="cannot be sent"):
        dump_processors(lambda tokens, logits: lock)  # type: ignore[arg-type, return-value]
    with pytest.raises(RequestError, match="cannot be loaded"):
        Processors(b"no pickle")
    harness = Harness(make_limits())
    harness.submit("bad", [1], TokenParams(max_tokens=3, logits_processor=b"no pickle"))
    harness.submit("plain", [3], TokenParams(max_tokens=4))
    run(harness)
    error = harness.end("bad").error
    assert error is not None
    assert (error.param, error.http_status) == ("logits_processor", 400)
    assert len(harness.tokens("plain")) == 4
