"""Random traffic: the books balance after every step, and company never changes an answer.

Every plan is looked at too: answers go first, budgets are kept, and nobody is passed for ever.

200 examples by default; `-m slow` runs 2,000 of them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
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

from enginewright.executor.admission import MAX_OVERTAKEN, MAX_PREFIX_WAITS
from enginewright.executor.plan import StepPlan
from enginewright.executor.sampling import TokenParams
from enginewright.executor.waiting import MAX_PASSED
from tests.executor.drafters import KnowingDrafter
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
    bad_words=st.sampled_from([(), (), ((4,), (9, 2)), ((6, 5, 3),)]),
    no_repeat_ngram_size=st.sampled_from([0, 0, 0, 2, 3]),
    prompt_logprobs=st.sampled_from([None, None, None, None, 0]),
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
    """Submits, steps, aborts, fails, pauses, evicts and lets time pass, in any order."""

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
        draft_tokens=st.sampled_from([0, 0, 2, 5]),
        wrong_drafts=st.sampled_from([2, 7, 1000]),
        on_disk=st.sampled_from([False, False, False, True]),
    )
    def open(
        self,
        overlap: bool,
        capacity_policy: str,
        chunk_policy: str,
        itl_target_ms: float | None,
        draft_tokens: int,
        wrong_drafts: int,
        on_disk: bool,
        **limits: int,
    ) -> None:
        self.folder = tempfile.mkdtemp() if on_disk else None
        self.harness = Harness(
            make_limits(vocab_size=VOCAB, **limits),
            max_queue=8,
            disk=None if self.folder is None else Path(self.folder),
            drafter=KnowingDrafter(VOCAB, wrong_drafts) if draft_tokens else None,
            draft_tokens=max(draft_tokens, 1),
            overlap=overlap,
            capacity_policy=capacity_policy,
            chunk_policy=chunk_policy,
            itl_target_ms=itl_target_ms,
            tenant_weights={"t": 2.0},
        )
        self.sent: dict[str, tuple[list[int], TokenParams]] = {}
        self.pauses = capacity_policy == "max_utilization"
        scheduler = self.harness.executor.scheduler
        self.schedule, scheduler.schedule = scheduler.schedule, self.checked_schedule  # type: ignore[method-assign]

    def checked_schedule(self, now: float, drafts: Mapping[int, list[int]] = {}) -> StepPlan | None:
        """Plan a step, and look whether the plan keeps the rules."""
        scheduler, limits = self.harness.executor.scheduler, self.harness.limits
        _, generation = scheduler._running.split()
        plan = self.schedule(now, drafts)
        for request in scheduler.waiting.values():
            assert request.overtaken <= MAX_OVERTAKEN
            assert request.prefix_waits <= MAX_PREFIX_WAITS
        most_passed = MAX_PASSED + MAX_OVERTAKEN + limits.max_batch_size
        assert scheduler._waiting._passed <= most_passed
        if plan is None:
            return None
        assert plan.num_tokens == sum(plan.counts) <= limits.max_num_tokens
        assert len(plan.requests) == len(set(plan.requests)) <= limits.max_batch_size
        drafted = sum(map(len, plan.drafts.values()))
        rows = len(plan.sample_rows) + drafted + sum(plan.prompt_rows.values())
        assert rows <= limits.max_batch_size
        if not self.pauses:
            assert {one.number for one in generation} <= set(plan.requests)
        elif generation and generation[0].number in scheduler.running:
            # The oldest that runs goes on, or those it waits for are pausing.
            pausing = any(one.is_pausing for one in scheduler.running.values())
            assert generation[0].number in plan.requests or pausing
        return plan

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

    @rule(count=st.integers(1, 10))
    def evict(self, count: int) -> None:
        cache = self.harness.executor.scheduler._cache
        for _ in range(min(count, cache._tree.num_evictable)):
            cache._tree.evict()
        self.harness.executor.scheduler.check()

    @precondition(lambda self: self.pauses and len(self.harness.executor.scheduler.running) > 1)
    @rule()
    def pause(self) -> None:
        scheduler = self.harness.executor.scheduler
        if sum(not one.is_pausing for one in scheduler.running.values()) > 1:
            scheduler._preemption.pause_newest(time.monotonic())
        scheduler.check()

    @rule()
    def let_time_pass(self) -> None:
        """Until every deadline is over."""
        executor = self.harness.executor
        if self.harness.channel.commands:
            executor.fetch()
        executor._respond(executor.scheduler.expire(time.monotonic() + 2e9))
        self.harness.collect()
        executor.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            self.finish()
        finally:
            if self.harness.disk is not None and self.folder is not None:
                self.harness.disk.close()
                shutil.rmtree(self.folder)

    def finish(self) -> None:
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
