import re

import numpy as np
import pytest

from enginewright.executor.messages import TokenLogprob
from enginewright.executor.plan import StepOutput
from enginewright.executor.sampling import TokenParams
from enginewright.runtime.errors import RequestError
from tests.executor.harness import Harness, make_limits
from tests.support.fake_session import expected_tokens

PROMPTS = [[1], [5, 6, 7], list(range(10, 40)), [9] * 17, [100, 0, 100]]


def run_alone(prompt: list[int], params: TokenParams) -> list[int]:
    harness = Harness(make_limits())
    harness.submit("a", prompt, params)
    harness.run()
    return harness.tokens("a")


@pytest.mark.parametrize("max_num_tokens", [1, 2, 3, 5, 7, 16, 64, 1000])
def test_chunks_of_every_size_give_the_same_tokens(max_num_tokens: int) -> None:
    harness = Harness(make_limits(max_num_tokens=max_num_tokens))
    params = TokenParams(max_tokens=12)
    for number, prompt in enumerate(PROMPTS):
        harness.submit(str(number), prompt, params)
    harness.run()
    for number, prompt in enumerate(PROMPTS):
        assert (harness.tokens(str(number)), "length") == expected_tokens(
            prompt, params, harness.limits
        )


def test_generation_goes_first_and_context_rows_stand_first() -> None:
    harness = Harness(make_limits(max_num_tokens=8))
    harness.submit("a", [1, 2], TokenParams(max_tokens=20))
    harness.step()
    harness.submit("b", list(range(20)), TokenParams(max_tokens=2))
    for past in (0, 7, 14):
        harness.step()
        batch = harness.session.batches[-1]
        count = min(7, 20 - past)
        assert batch.seq_starts.tolist() == [0, count, count + 1]
        assert batch.past_tokens[0] == past
        rows = [count - 1, count] if past == 14 else [count]
        assert batch.logit_rows.tolist() == rows
    assert len(harness.tokens("a")) == 4
    assert len(harness.tokens("b")) == 1


def test_a_request_waits_until_its_longest_answer_fits() -> None:
    harness = Harness(make_limits(num_blocks=6, block_tokens=4, max_num_tokens=64))
    harness.submit("a", [1] * 8, TokenParams(max_tokens=8))  # 4 blocks
    harness.submit("b", [2] * 4, TokenParams(max_tokens=8))  # 3 blocks
    harness.step()
    gauges = harness.executor.scheduler.report.gauges()
    assert (gauges["running"], gauges["waiting"]) == (1, 1)
    harness.run()
    assert harness.end("a").finish_reason == harness.end("b").finish_reason == "length"
    assert harness.executor.scheduler.report.gauges()["free_blocks"] == 6


@pytest.mark.parametrize(
    ("prompt", "params", "code", "param", "words"),
    [
        ([], TokenParams(), "invalid_request", "prompt", "empty"),
        ([3, 101], TokenParams(), "invalid_request", "prompt", "101.*0 to 100"),
        ([-1], TokenParams(), "invalid_request", "prompt", "-1"),
        ([1] * 64, TokenParams(), "context_length_exceeded", "prompt", "64 tokens.*63"),
        (
            [1] * 30,
            TokenParams(max_tokens=20),
            "context_length_exceeded",
            "max_tokens",
            "30.*20.*40",
        ),
        ([1] * 50, TokenParams(), "context_length_exceeded", "prompt", "50 tokens.*40"),
        ([1], TokenParams(max_tokens=0), "invalid_request", "max_tokens", "0"),
        ([1], TokenParams(logit_bias={101: 1.0}), "invalid_request", "logit_bias", "101"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(
    prompt: list[int], params: TokenParams, code: str, param: str, words: str
) -> None:
    harness = Harness(make_limits(num_blocks=10))
    harness.submit("good", [1], TokenParams(max_tokens=2))
    harness.submit("bad", prompt, params)
    harness.run()
    (only,) = harness.outputs["bad"]
    assert only.finish_reason == "error"
    assert only.error is not None
    assert (only.error.code, only.error.param, only.error.http_status) == (code, param, 400)
    assert re.search(words, only.error.message)
    assert len(harness.tokens("good")) == 2
    assert harness.stats()["rejected_by_cause"] == {code: 1}


def test_a_full_queue_and_a_used_id_are_refused() -> None:
    harness = Harness(make_limits(), max_queue=2)
    for request_id in ("a", "b", "c"):
        harness.submit(request_id, [1], TokenParams(max_tokens=2))
    harness.run()
    error = harness.end("c").error
    assert error is not None
    assert (error.code, error.http_status) == ("overloaded", 429)
    harness.executor.scheduler.submit("d", [1], TokenParams(), 0.0)
    with pytest.raises(RequestError, match="'d' is in use"):
        harness.executor.scheduler.submit("d", [1], TokenParams(), 0.0)


def test_max_tokens_is_clipped_to_the_context() -> None:
    harness = Harness(make_limits())
    harness.submit("a", [1] * 60, TokenParams(max_tokens=1000))
    harness.submit("b", [1] * 62, TokenParams(max_tokens=None))
    harness.run()
    assert (len(harness.tokens("a")), harness.end("a").finish_reason) == (4, "length")
    assert (len(harness.tokens("b")), harness.end("b").finish_reason) == (2, "length")


def test_without_max_tokens_an_answer_fills_a_pool_smaller_than_the_context() -> None:
    harness = Harness(make_limits(num_blocks=5))
    harness.submit("a", [1] * 10, TokenParams(max_tokens=None))
    harness.run()
    assert (len(harness.tokens("a")), harness.end("a").finish_reason) == (10, "length")


def test_stop_tokens_end_of_text_and_min_tokens() -> None:
    prompt = [4, 2]
    free = run_alone(prompt, TokenParams(max_tokens=8))
    token = free[3]
    first = free.index(token) + 1
    stop = Harness(make_limits())
    stop.submit("stop", prompt, TokenParams(max_tokens=8, stop_token_ids=(token,)))
    stop.submit("eos", prompt, TokenParams(max_tokens=8, eos_token_ids=(token,)))
    later = TokenParams(max_tokens=30, eos_token_ids=tuple(free), min_tokens=6)
    stop.submit("later", prompt, later)
    stop.run()
    assert stop.tokens("stop") == stop.tokens("eos") == free[:first]
    assert (stop.end("stop").finish_reason, stop.end("stop").stop_reason) == ("stop", token)
    assert (stop.end("eos").finish_reason, stop.end("eos").stop_reason) == ("stop", None)
    assert (stop.tokens("later"), stop.end("later").finish_reason) == expected_tokens(
        prompt, later, stop.limits
    )
    assert not set(stop.tokens("later")[:6]) & set(free)


def test_seeds_penalties_and_bias_reach_the_session() -> None:
    kinds = [
        TokenParams(max_tokens=6, temperature=0.7, seed=(1 << 64) - 1),
        TokenParams(max_tokens=6, repetition_penalty=1.2),
        TokenParams(max_tokens=6, frequency_penalty=0.5, temperature=1.0, seed=5),
        TokenParams(max_tokens=6),
        TokenParams(max_tokens=6, logit_bias={3: 1.5}),
    ]
    harness = Harness(make_limits(max_batch_size=8, max_num_tokens=7, num_blocks=64))
    for number, params in enumerate(kinds):
        harness.submit(str(number), PROMPTS[2], params)
    harness.run()
    for number, params in enumerate(kinds):
        assert harness.tokens(str(number)) == expected_tokens(PROMPTS[2], params, harness.limits)[0]
    biased = [s for s in harness.session.samplings if len(s.bias_ids)]
    assert biased
    assert all(s.bias_ids.tolist() == [3] and s.bias_values[0] == 1.5 for s in biased)
    assert all(s.bias_ids.dtype == np.int32 for s in harness.session.samplings)


def test_logprobs_come_only_where_asked() -> None:
    harness = Harness(make_limits())
    harness.submit("none", [1], TokenParams(max_tokens=2))
    harness.submit("own", [2], TokenParams(max_tokens=2, num_logprobs=0))
    harness.submit("two", [3], TokenParams(max_tokens=2, num_logprobs=2))
    harness.run()
    assert [output.logprobs for output in harness.outputs["none"]] == [None, None]
    for token, output in zip(harness.tokens("own"), harness.outputs["own"], strict=True):
        assert output.logprobs == [TokenLogprob(token, -0.5, [])]
    for token, output in zip(harness.tokens("two"), harness.outputs["two"], strict=True):
        assert output.logprobs is not None
        assert output.logprobs[0].top == [(token, -0.5), ((token + 1) % 101, -1.5)]


@pytest.mark.parametrize("verb", ["launch", "sample", "wait"])
def test_a_failing_step_hurts_only_its_requests(verb: str) -> None:
    harness = Harness(make_limits(max_batch_size=2, max_num_tokens=4))
    params = TokenParams(max_tokens=3)
    harness.submit("a", [1, 2, 3, 4, 5, 6], params)
    harness.submit("b", [7], params)
    harness.session.fail_next = verb
    harness.run()
    (only,) = harness.outputs["a"]
    assert only.error is not None
    assert (only.error.code, only.finish_reason) == ("step_failed", "error")
    assert f"{verb} was told to fail" in only.error.message
    assert harness.tokens("b") == expected_tokens([7], params, harness.limits)[0]
    assert harness.stats()["failed_steps"] == 1
    assert harness.executor.scheduler.report.gauges()["used_blocks"] == 0


def test_abort_is_safe_at_any_time() -> None:
    harness = Harness(make_limits(max_batch_size=1))
    harness.submit("running", [1] * 30, TokenParams(max_tokens=30))
    harness.submit("queued", [1], TokenParams(max_tokens=3))
    harness.submit("kept", [1], TokenParams(max_tokens=3))
    harness.step()
    for request_id in ("running", "queued", "running", "unknown"):
        harness.abort(request_id)
    harness.run()
    harness.submit("last", [1], TokenParams(max_tokens=1))
    harness.abort("kept")
    harness.run()
    for request_id in ("running", "queued"):
        assert harness.end(request_id).finish_reason == "cancelled"
    assert harness.end("kept").finish_reason == "length"
    ended = harness.stats()["ended"]
    assert ended == {"finished": 2, "cancelled": 2, "rejected": 0, "failed": 0}
    assert harness.executor.scheduler.report.gauges()["used_blocks"] == 0


def test_an_id_that_is_aborted_and_used_again_while_its_step_runs_stays_apart() -> None:
    harness = Harness(make_limits())
    scheduler = harness.executor.scheduler
    harness.submit("a", [1], TokenParams(max_tokens=5))
    harness.step()
    plan = scheduler.schedule(0.0)
    assert plan is not None
    scheduler.abort("a", 0.0)
    scheduler.submit("a", [2], TokenParams(max_tokens=1), 0.0)
    assert scheduler.update(plan, StepOutput([9]), 0.0) == []
    scheduler.check()


def test_stats_count_what_happened() -> None:
    harness = Harness(make_limits(max_num_tokens=8))
    harness.submit("a", [1] * 20, TokenParams(max_tokens=5))
    harness.submit("b", [2] * 3, TokenParams(max_tokens=5, stop_token_ids=tuple(range(101))))
    harness.step()
    stats = harness.stats()
    assert (stats["running"], stats["waiting"], stats["kv_tokens"]) == (1, 1, 8)
    assert (stats["used_blocks"], stats["free_blocks"], stats["num_blocks"]) == (2, 30, 32)
    harness.run()
    stats = harness.stats()
    assert (stats["prompt_tokens"], stats["generation_tokens"]) == (23, 6)
    assert stats["finish_reasons"] == {"stop": 1, "length": 1}
    assert stats["submitted"] == 2
    for name in ("queue_seconds", "first_token_seconds", "request_seconds"):
        histogram = stats[name]
        assert isinstance(histogram, dict)
        assert histogram["count"] == 2
        assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
    first = harness.outputs["a"][0]
    assert first.queue_seconds is not None
    assert first.prefill_seconds is not None
    assert harness.outputs["a"][1].queue_seconds is None
