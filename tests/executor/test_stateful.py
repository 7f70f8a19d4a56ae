"""Random traffic: the books balance after every step, and company never changes an answer.

200 examples by default; `-m slow` runs 2,000 of them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from enginewright.executor.sampling import TokenParams
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens

PARAMS = st.builds(
    TokenParams,
    max_tokens=st.one_of(st.none(), st.integers(1, 20)),
    min_tokens=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 0.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    seed=st.integers(0, 3),
    num_logprobs=st.sampled_from([-1, -1, 0, 3]),
    eos_token_ids=st.sampled_from([(), (5,), (1, 2, 3, 4)]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    cache_salt=st.sampled_from([None, None, "s"]),
    tenant=st.sampled_from([None, "t", "u"]),
    queue_timeout=st.sampled_from([None, None, None, 1e9, 1e-9]),
    deadline=st.sampled_from([None, None, None, 1e9, 1e-9]),
    pin=st.sampled_from([False, False, False, True]),
)
VOCAB = 23
SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
ANY_PROMPT = st.lists(st.integers(-1, VOCAB), max_size=50)
PROMPT = st.builds(  # a start that many share, and an end
    lambda count, end: (SHARED * 2)[:count] + end,
    st.integers(0, 24),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
)
OUT_OF_TIME = ("queue_timeout", "deadline_exceeded")


class ExecutorMachine(RuleBasedStateMachine):
    """Submits, steps, aborts and fails in any order."""

    @initialize(
        max_batch_size=st.integers(1, 6),
        max_num_tokens=st.integers(1, 40),
        num_blocks=st.integers(1, 24),
        block_tokens=st.sampled_from([1, 2, 4, 32]),
        max_seq_len=st.integers(2, 48),
        overlap=st.booleans(),
        capacity_policy=st.sampled_from(
            ["guaranteed_no_evict", "max_utilization", "max_utilization", "static_batch"]
        ),
        chunk_policy=st.sampled_from(["first_come_first_served", "equal_progress"]),
        itl_target_ms=st.sampled_from([None, None, 0.001]),
    )
    def open(
        self,
        overlap: bool,
        capacity_policy: str,
        chunk_policy: str,
        itl_target_ms: float | None,
        **limits: int,
    ) -> None:
        self.harness = Harness(
            make_limits(vocab_size=VOCAB, **limits),
            max_queue=8,
            overlap=overlap,
            capacity_policy=capacity_policy,
            chunk_policy=chunk_policy,
            itl_target_ms=itl_target_ms,
            tenant_weights={"t": 2.0},
        )
        self.sent: dict[str, tuple[list[int], TokenParams]] = {}

    @rule(prompt=st.one_of(ANY_PROMPT, PROMPT), params=PARAMS)
    def submit(self, prompt: list[int], params: TokenParams) -> None:
        request_id = f"r{len(self.sent)}"
        self.sent[request_id] = (prompt, params)
        self.harness.submit(request_id, prompt, params)

    @rule(prompt=PROMPT, params=PARAMS, copies=st.integers(1, 5))
    def submit_several(self, prompt: list[int], params: TokenParams, copies: int) -> None:
        for _ in range(copies):
            self.submit(prompt, params)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.harness.step()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(sorted(self.sent))))

    @rule(verb=st.sampled_from(["launch", "sample", "wait"]))
    def fail(self, verb: str) -> None:
        self.harness.session.fail_next = verb
        self.harness.step()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.session.fail_next = None
        self.harness.step()
        self.harness.run()
        for request_id, (prompt, params) in self.sent.items():
            self.check_answer(request_id, prompt, params)
        stats: dict[str, Any] = self.harness.stats()
        assert sum(stats["ended"].values()) == stats["submitted"] == len(self.sent)
        assert (stats["used_blocks"], stats["running"], stats["waiting"]) == (0, 0, 0)

    def check_answer(self, request_id: str, prompt: list[int], params: TokenParams) -> None:
        tokens, end = self.harness.tokens(request_id), self.harness.end(request_id)
        ends = [o.finish_reason for o in self.harness.outputs[request_id] if o.finish_reason]
        assert len(ends) == 1
        if end.error is not None and end.error.code not in ("step_failed", *OUT_OF_TIME):
            assert tokens == []
            return
        if params.max_tokens is None:
            pool = self.harness.limits.num_blocks * self.harness.limits.block_tokens
            params = msgspec.structs.replace(params, max_tokens=max(pool - len(prompt), 1))
        expected, reason = expected_tokens(prompt, params, self.harness.limits)
        assert tokens == expected[: len(tokens)]
        if end.error is None and end.finish_reason != "cancelled":
            assert (tokens, end.finish_reason) == (expected, reason)
        assert (
            1e-9 not in (params.queue_timeout, params.deadline)
            or end.error is not None
            or (end.finish_reason == "cancelled")
        )


TestExecutor = ExecutorMachine.TestCase
TestExecutor.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@pytest.mark.slow
def test_many_examples() -> None:
    run_state_machine_as_test(
        ExecutorMachine,
        settings=settings(
            max_examples=2000,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
