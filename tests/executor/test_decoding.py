"""Constraints, drafts and prompt log-probabilities through the loop, over the fake session."""

import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from enginewright.executor.bans import Bans
from enginewright.executor.config import ExecutorConfig
from enginewright.executor.guided import Compiler, Vocabulary
from enginewright.executor.intake import Intake
from enginewright.executor.loop import PyExecutor
from enginewright.executor.messages import StepOutputs, TokenLogprob
from enginewright.executor.ngram_drafter import NgramDrafter
from enginewright.executor.request import Request
from enginewright.executor.sampling import Guided, TokenParams
from enginewright.executor.speculative import Drafter
from tests.executor.drafters import KnowingDrafter
from tests.executor.harness import Harness, make_limits
from tests.support.byte_tokenizer import EOS, write_tokenizer
from tests.support.fake_session import expected_tokens, next_token

PROMPTS = [[1], [5, 6, 7], list(range(10, 40)), [9] * 17, [100, 0, 100]]


class DraftingHarness(Harness):
    """An executor whose drafter knows the answers, and is wrong now and then."""

    def __init__(self, most: int, wrong: int, **options: int | str | bool) -> None:
        limits = {k: v for k, v in options.items() if k in make_limits.__annotations__}
        config = {k: v for k, v in options.items() if k not in limits}
        super().__init__(make_limits(**limits), **config)  # type: ignore[arg-type]
        self.drafter = KnowingDrafter(self.limits.vocab_size, wrong)
        self.executor = PyExecutor(
            self.session,
            self.channel,
            ExecutorConfig(draft_tokens=most, **config),  # type: ignore[arg-type]
            drafter=self.drafter,
        )


KINDS = [
    TokenParams(max_tokens=14),
    TokenParams(max_tokens=9, temperature=0.8, seed=11, num_logprobs=2),
    TokenParams(max_tokens=12, repetition_penalty=1.2),
    TokenParams(max_tokens=20, min_tokens=4, stop_token_ids=tuple(range(0, 101, 3))),
    TokenParams(max_tokens=11, temperature=1.0, seed=3),
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("wrong", [2, 5, 1000])
def test_drafts_change_no_token(wrong: int, policy: str, overlap: bool) -> None:
    harness = DraftingHarness(
        3, wrong, num_blocks=24, capacity_policy=policy, overlap=overlap, max_batch_size=8
    )
    for number, (prompt, params) in enumerate(zip(PROMPTS, KINDS, strict=True)):
        harness.submit(str(number), prompt, params)
    harness.run()
    for number, (prompt, params) in enumerate(zip(PROMPTS, KINDS, strict=True)):
        tokens, reason = expected_tokens(prompt, params, harness.limits)
        assert harness.tokens(str(number)) == tokens
        assert harness.end(str(number)).finish_reason == reason
    logprobs = [one for output in harness.outputs["1"] for one in output.logprobs or ()]
    assert [one.token_id for one in logprobs] == harness.tokens("1")
    figures = harness.stats()["speculative"]
    assert isinstance(figures, dict)
    assert figures["num_draft_tokens"] > 0
    share = figures["num_accepted_tokens"] / figures["num_draft_tokens"]
    assert share > 0.7 if wrong == 1000 else 0.1 < share < 0.8


def test_right_drafts_save_steps() -> None:
    steps: list[int] = []
    for wrong in (1, 1000):
        harness = DraftingHarness(3, wrong, max_batch_size=8)
        harness.submit("a", [1, 2], TokenParams(max_tokens=30))
        harness.run()
        steps.append(len(harness.session.batches))
    assert steps[1] < 15 < 30 <= steps[0]


def test_a_drafter_that_fails_is_not_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    harness = DraftingHarness(3, 1000)
    harness.drafter.propose = lambda wanted: 1 // 0  # type: ignore[method-assign, assignment]
    harness.submit("a", [1, 2], TokenParams(max_tokens=5))
    harness.run()
    assert (
        harness.tokens("a") == expected_tokens([1, 2], TokenParams(max_tokens=5), harness.limits)[0]
    )
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_bad_words_and_ngrams_never_come() -> None:
    harness = Harness(make_limits(vocab_size=7, max_batch_size=8))
    harness.submit("words", [3, 4], TokenParams(max_tokens=40, bad_words=((2,), (3, 4))))
    harness.submit("grams", [3, 4, 5], TokenParams(max_tokens=40, no_repeat_ngram_size=2))
    harness.submit("plain", [3, 4], TokenParams(max_tokens=20))
    harness.run()
    words = harness.tokens("words")
    assert 2 not in words
    assert (3, 4) not in set(pairwise(words))
    grams = [3, 4, 5, *harness.tokens("grams")]
    pairs = list(pairwise(grams))
    assert len(set(pairs)) == len(pairs)
    expected = expected_tokens([3, 4], TokenParams(max_tokens=20), harness.limits)[0]
    assert harness.tokens("plain") == expected


def test_constraints_that_leave_nothing_fail_their_request_alone() -> None:
    harness = Harness(make_limits(vocab_size=3))
    nothing = TokenParams(max_tokens=4, bad_words=((0,), (1,), (2,)))
    harness.submit("none", [1], nothing)
    harness.submit("plain", [1], TokenParams(max_tokens=4))
    harness.run()
    (only,) = harness.outputs["none"]
    assert only.error is not None
    assert "leave no token" in only.error.message
    assert len(harness.tokens("plain")) == 4
    assert Bans(nothing).after([1], []) == [0, 1, 2]


@pytest.mark.parametrize(("rows", "tokens"), [(1, 16), (2, 5), (4, 16), (64, 7), (64, 64)])
def test_prompt_logprobs_come_once_with_the_first_token(rows: int, tokens: int) -> None:
    harness = Harness(make_limits(max_batch_size=rows, max_num_tokens=tokens, num_blocks=64))
    params = TokenParams(max_tokens=3, prompt_logprobs=2, num_logprobs=0)
    prompts = [list(range(7, 29)), [4], [9, 9]]
    for number, prompt in enumerate(prompts):
        harness.submit(str(number), prompt, params)
        harness.submit(f"p{number}", prompt, TokenParams(max_tokens=5))
    harness.run()
    for number, prompt in enumerate(prompts):
        first, *others = harness.outputs[str(number)]
        assert first.prompt_logprobs is not None
        assert [one.token_id for one in first.prompt_logprobs] == prompt[1:]
        for one in first.prompt_logprobs:
            assert one == TokenLogprob(
                one.token_id, -0.5, [(one.token_id, -0.5), ((one.token_id + 1) % 101, -1.5)]
            )
        assert all(output.prompt_logprobs is None for output in others)
        answer = expected_tokens(prompt, params, harness.limits)[0]
        assert harness.tokens(str(number)) == answer
        assert harness.tokens(f"p{number}")[:3] == answer
        assert first.cached_tokens == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


class GuidedHarness(Harness):
    """Waits for grammars, which another thread compiles."""

    def __init__(self, folder: Path, overlap: bool = False, drafter: Drafter | None = None) -> None:
        super().__init__(make_limits(vocab_size=300, max_batch_size=8))
        config = ExecutorConfig(overlap=overlap)
        self.executor = PyExecutor(self.session, self.channel, config, folder, drafter)

    def run(self, most_steps: int = 10_000) -> None:
        intake: Intake = self.executor._intake
        while self.channel.commands or intake:
            self.executor.fetch()
            self.collect()
            time.sleep(0.001)
        super().run(most_steps)


@pytest.mark.parametrize("overlap", [False, True])
def test_guided_answers_match_and_leave_others_alone(folder: Path, overlap: bool) -> None:
    harness = GuidedHarness(folder, overlap=overlap)
    eos = (EOS,)
    choice = Guided("choice", '["yes", "no"]')
    digits = Guided("regex", "[0-9]{5}")
    harness.submit("choice", [1, 2], TokenParams(max_tokens=9, guided=choice, eos_token_ids=eos))
    harness.submit("digits", [3], TokenParams(max_tokens=9, guided=digits, eos_token_ids=eos))
    harness.submit("kept", [3], TokenParams(max_tokens=9, guided=digits))  # ignores the end
    harness.submit(
        "long", [3], TokenParams(max_tokens=9, min_tokens=8, guided=digits, eos_token_ids=eos)
    )
    harness.submit("short", [3], TokenParams(max_tokens=3, guided=digits, eos_token_ids=eos))
    harness.submit("bad", [3], TokenParams(guided=Guided("regex", "(")))
    harness.submit("plain", [1, 2], TokenParams(max_tokens=9))
    harness.run()
    guided_names = ("choice", "digits", "kept", "long", "short")
    text = {name: bytes(t - 1 for t in harness.tokens(name) if t) for name in guided_names}
    assert text["choice"] in (b"yes", b"no")
    for name in ("digits", "kept", "long"):
        assert len(text[name]) == 5
        assert text[name].isdigit()
        assert harness.tokens(name)[-1] == EOS
        assert harness.end(name).finish_reason == "stop"
    assert len(text["short"]) == 3
    assert harness.end("short").finish_reason == "length"
    (bad,) = harness.outputs["bad"]
    assert bad.error is not None
    assert (bad.error.param, bad.error.http_status) == ("guided", 400)
    plain = TokenParams(max_tokens=9)
    assert harness.tokens("plain") == expected_tokens([1, 2], plain, harness.limits)[0]


def test_drafts_change_no_guided_token(folder: Path) -> None:
    """The drafts are digits, of which the grammar allows some."""
    params = TokenParams(
        max_tokens=24, guided=Guided("regex", "([0-4]{2}x|[5-9]{3}){9}"), temperature=1.0, seed=5
    )
    answers: list[list[int]] = []
    for drafter in (None, DigitDrafter()):
        harness = GuidedHarness(folder, drafter=drafter)
        harness.submit("a", [3, 5], params)
        harness.run()
        answers.append(harness.tokens("a"))
    assert answers[0] == answers[1]
    figures = harness.stats()["speculative"]
    assert isinstance(figures, dict)
    assert figures["num_accepted_tokens"] > 0


class DigitDrafter(NgramDrafter):
    """Guesses what the fake session would say if all digits were allowed, one right in three."""

    def propose(self, wanted: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, (request, most) in wanted.items():
            known = list(request.tokens)
            for place in range(most):
                small = frozenset(range(300)) - set(range(54, 59) if place % 2 else range(49, 54))
                known.append(next_token(known, 300, request.params.seed, 0, small))
            found[number] = known[-most:]
        return found


def test_a_request_that_waits_for_its_grammar_can_be_aborted(folder: Path) -> None:
    harness = GuidedHarness(folder)
    params = TokenParams(max_tokens=9, guided=Guided("regex", "a{1,40}b{1,40}"))
    harness.submit("a", [1], params)
    harness.submit("a", [1], params)
    harness.abort("a")
    harness.outputs["a"] = []
    harness.executor.fetch()
    reasons = [
        output.finish_reason
        for reply in harness.channel.replies
        if isinstance(reply, StepOutputs)
        for output in reply.outputs
    ]
    assert reasons == ["error", "cancelled"]
    harness.channel.replies.clear()
    harness.run()
    assert harness.outputs["a"] == []


def test_without_a_tokenizer_guided_requests_are_refused() -> None:
    harness = Harness(make_limits())
    harness.submit("a", [1], TokenParams(guided=Guided("json_object")))
    harness.run()
    error = harness.end("a").error
    assert error is not None
    assert "no tokenizer" in error.message


def test_a_compiler_makes_masks_of_the_whole_vocabulary(folder: Path) -> None:
    grammar = Compiler(lambda: Vocabulary(folder, 300)).compile(Guided("regex", "a")).result()
    row = np.zeros(10, np.uint32)
    grammar.fill(row, [], ())
    assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == [98]
