"""Beam search against a plain one in numpy, and against all answers there are."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from enginewright.executor.messages import ExecutorInfo, TokenLogprob, TokenOutput
from enginewright.executor.sampling import SamplingParams, TokenParams
from enginewright.runtime.errors import RequestError
from enginewright.serve.beam_search import BeamSearch

VOCAB = 6
EOS = 0
PROMPT = [3, 1]


def logprobs_after(tokens: list[int], seed: int) -> np.ndarray:
    """A model: log-probabilities that depend on all tokens."""
    random = np.random.default_rng([seed, *tokens])
    logits = random.normal(size=VOCAB) * 1.5
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32).astype(np.float64)


class ModelClient:
    """Answers requests of one token from the model, one after the other."""

    def __init__(self, seed: int) -> None:
        self.info = ExecutorInfo(64, 8, 64, 8, 32, VOCAB, {}, 0.0)
        self.alive = True
        self.seed = seed
        self.asked: deque[tuple[str, list[int], TokenParams, Callable[[TokenOutput], None]]]
        self.asked = deque()
        self.aborted: list[str] = []

    def submit(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: TokenParams,
        sink: Callable[[TokenOutput], None],
    ) -> None:
        self.asked.append((request_id, prompt_token_ids, params, sink))

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        return {}

    def shutdown(self) -> None:
        return None

    def run(self) -> None:
        while self.asked:
            request_id, prompt, params, sink = self.asked.popleft()
            assert params.max_tokens == 1
            found = logprobs_after(prompt, self.seed)
            order = np.lexsort((np.arange(VOCAB), -found))[: params.num_logprobs]
            top = [(int(token), float(found[token])) for token in order]
            entry = TokenLogprob(top[0][0], top[0][1], top)
            sink(TokenOutput(request_id, [entry.token_id], [entry], "length"))


def search(seed: int, **fields: Any) -> list[tuple[list[int], float, str | None]]:
    client, found = ModelClient(seed), list[TokenOutput]()
    params = SamplingParams(use_beam_search=True, logprobs=1, **fields)
    BeamSearch(client, "r", PROMPT, params, [EOS], found.extend).start()
    client.run()
    return [
        (one.token_ids, sum(e.logprob for e in one.logprobs or ()), one.finish_reason)
        for one in found
    ]


def plain_search(
    seed: int, width: int, most: int, penalty: float, early: bool
) -> list[tuple[list[int], float]]:
    """Beam search as it is written down: all extensions, sorted, the best kept."""

    def score(one: tuple[list[int], float]) -> float:
        return one[1] / len(one[0]) ** penalty

    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []
    for _ in range(most):
        everything = [
            ([*tokens, token], total + float(value))
            for tokens, total in live
            for token, value in enumerate(logprobs_after(PROMPT + tokens, seed))
        ]
        everything.sort(key=lambda one: -one[1])
        ended += [one for one in everything[:width] if one[0][-1] == EOS]
        live = [one for one in everything if one[0][-1] != EOS][:width]
        ended = sorted(ended, key=lambda one: -score(one))
        if len(ended) >= width and (early or max(map(score, live)) <= score(ended[width - 1])):
            return ended[:width]
    return sorted(ended + live, key=lambda one: -score(one))[:width]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_search_is_the_plain_one(width: int, penalty: float, early: bool) -> None:
    for seed in range(12):
        found = search(seed, n=width, max_tokens=6, length_penalty=penalty, early_stopping=early)
        expected = plain_search(seed, width, 6, penalty, early)
        assert [one[0] for one in found] == [tokens for tokens, _ in expected]
        assert np.allclose([one[1] for one in found], [total for _, total in expected])
        for tokens, _, reason in found:
            assert reason == ("stop" if tokens[-1] == EOS else "length")


def test_a_wide_beam_finds_the_likeliest_answer_of_all() -> None:
    for seed in range(5):
        best = max(
            (
                sum(
                    float(logprobs_after(PROMPT + list(tokens[:place]), seed)[token])
                    for place, token in enumerate(tokens)
                ),
                tokens,
            )
            for length in (1, 2, 3)
            for tokens in itertools.product(range(VOCAB), repeat=length)
            if EOS not in tokens[:-1] and (length == 3 or tokens[-1] == EOS)
        )
        fields = {"n": 1, "best_of": 128, "max_tokens": 3, "length_penalty": 0.0}
        ((tokens, total, _),) = search(seed, early_stopping=False, **fields)
        assert tuple(tokens) == best[1]
        assert total == pytest.approx(best[0])


def test_min_tokens_and_stop_tokens() -> None:
    for seed in range(5):
        for tokens, _, _ in search(seed, n=3, max_tokens=6, min_tokens=4):
            assert EOS not in tokens[:4]
        for tokens, _, _ in search(seed, n=2, max_tokens=5, ignore_eos=True, stop_token_ids=[2]):
            assert 2 not in tokens[:-1]


def test_an_error_ends_every_answer_and_abort_ends_the_beams() -> None:
    client, found = ModelClient(0), list[TokenOutput]()
    params = SamplingParams(use_beam_search=True, n=2, max_tokens=5)
    BeamSearch(client, "r", PROMPT, params, [EOS], found.extend).start()
    request_id, _, _, sink = client.asked.popleft()
    sink(TokenOutput(request_id, finish_reason="cancelled"))
    assert [one.finish_reason for one in found] == ["cancelled", "cancelled"]
    one = BeamSearch(client, "s", PROMPT, params, [EOS], found.extend)
    one.start()
    one.abort()
    assert client.aborted[-1] == "s-0.0"
    client.run()
    assert len(found) == 2


def test_what_does_not_go_with_beams_is_refused() -> None:
    for fields in ({"bad_words": ["x"]}, {"presence_penalty": 1.0}, {"prompt_logprobs": 1}):
        params = SamplingParams(use_beam_search=True, **fields)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="not go with beam search"):
            BeamSearch(ModelClient(0), "r", PROMPT, params, [EOS], print)
