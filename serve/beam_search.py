"""Beam search: the likeliest answers of one prompt, a request of one token for each beam and step.

The beams' common tokens come from the executor's prefix cache, and a token has the same
log-probability however it is computed, so the search is exact.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..executor.messages import ErrorInfo, TokenLogprob, TokenOutput, error_info
from ..executor.sampling import SamplingParams, TokenParams
from ..runtime.errors import EnginewrightError, RequestError
from .client import Client

_NOT_WITH_BEAMS = (
    "guided",
    "bad_words",
    "logit_bias",
    "no_repeat_ngram_size",
    "prompt_logprobs",
    "logits_processor",
)


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer in the making, or one that has ended."""

    entries: tuple[TokenLogprob, ...] = ()
    total: float = 0.0  # sum of log-probabilities
    stopped_by: int | None = None  # the stop token it ends with

    def score(self, length_penalty: float) -> float:
        """Return the total divided by the length to the power of the penalty."""
        return self.total / max(len(self.entries), 1) ** length_penalty

    @property
    def token_ids(self) -> list[int]:
        """The answer's tokens."""
        return [entry.token_id for entry in self.entries]


class Beams:
    """The search itself: takes each live beam's likeliest tokens, knows when it is over.

    With `early_stopping` it ends as soon as `width` answers have ended; without, when no live beam
    can become better than the worst of those (as far as its present length tells).
    """

    def __init__(
        self,
        width: int,
        most_tokens: int,
        stop_ids: frozenset[int],
        *,
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: bool = True,
    ) -> None:
        self.width = width
        self.live = [Beam()]
        self._most = most_tokens
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._penalty = length_penalty
        self._early = early_stopping
        self._ended: list[Beam] = []
        self._length = 0

    @property
    def candidates(self) -> int:
        """How many of each beam's likeliest tokens a step needs."""
        return 2 * self.width + len(self._stop_ids) * (self._min_tokens > self._length)

    @property
    def over(self) -> bool:
        """Whether no step can change the result."""
        return not self.live or self._length >= self._most or self._is_decided

    @property
    def _is_decided(self) -> bool:
        """Whether enough answers have ended, and no live beam can better the worst of them."""
        if len(self._ended) < self.width:
            return False
        best = max((beam.score(self._penalty) for beam in self.live), default=-math.inf)
        return self._early or best <= self._ended[self.width - 1].score(self._penalty)

    def step(self, tops: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Extend the live beams by their likeliest tokens, (id, log-probability), best first."""
        early = self._length < self._min_tokens
        longer = [
            (beam.total + logprob, place, token, logprob)
            for place, (beam, top) in enumerate(zip(self.live, tops, strict=True))
            for token, logprob in top
            if not (early and token in self._stop_ids)
        ]
        longer.sort(key=lambda one: (-one[0], one[1], one[2]))
        live: list[Beam] = []
        for rank, (total, place, token, logprob) in enumerate(longer):
            if len(live) == self.width:
                break
            entry = TokenLogprob(token, logprob, list(tops[place]))
            entries = (*self.live[place].entries, entry)
            if token not in self._stop_ids:
                live.append(Beam(entries, total))
            elif rank < self.width:
                self._ended.append(Beam(entries, total, token))
        self.live = live
        self._length += 1
        self._ended.sort(key=lambda beam: -beam.score(self._penalty))

    def best(self) -> list[Beam]:
        """Return the best answers, at most `width`; live ones count where the length ends them."""
        found = self._ended if self._is_decided else self._ended + self.live
        return sorted(found, key=lambda beam: -beam.score(self._penalty))[: self.width]


class BeamSearch:
    """Runs one prompt's search on an executor; `done` gets the outputs of its `n` answers."""

    def __init__(
        self,
        client: Client,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        done: Callable[[list[TokenOutput]], None],
    ) -> None:
        """Raise RequestError for parameters that do not go with beams."""
        _check(params)
        room = client.info.max_seq_len - len(prompt)
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._beams = Beams(
            params.best_of or params.n,
            most,
            self._eos | frozenset(params.stop_token_ids or ()),
            min_tokens=params.min_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )
        self._client = client
        self._request_id = request_id
        self._prompt = prompt
        self._params = params
        self._done = done
        self._lock = threading.RLock()
        self._steps = 0
        self._waiting: dict[str, int] = {}  # request id: place among the live beams
        self._tops: list[list[tuple[int, float]]] = []
        self._cached_tokens = 0
        self._ended = False

    def start(self) -> None:
        """Submit the first step; raises what the executor refuses at once."""
        with self._lock:
            self._submit()

    def abort(self) -> None:
        """End the search without a result."""
        with self._lock:
            self._ended = True
            for request_id in self._waiting:
                self._client.abort(request_id)

    def _submit(self) -> None:
        params = TokenParams(
            max_tokens=1,
            num_logprobs=self._beams.candidates,
            priority=self._params.priority,
            deadline=self._params.deadline,
            queue_timeout=self._params.queue_timeout,
            cache_salt=self._params.cache_salt,
        )
        live = self._beams.live
        self._tops = [[] for _ in live]
        ids = [f"{self._request_id}-{self._steps}.{place}" for place in range(len(live))]
        self._waiting = dict(zip(ids, range(len(live)), strict=True))
        self._steps += 1
        for request_id, beam in zip(ids, live, strict=True):
            prompt = self._prompt + beam.token_ids
            self._client.submit(request_id, prompt, params, partial(self._receive, request_id))

    def _receive(self, request_id: str, output: TokenOutput) -> None:
        """Take one beam's next tokens, on the client's thread."""
        with self._lock:
            outputs = self._take(request_id, output)
        if outputs:  # without the lock: whoever gets them may hold one of its own
            self._done(outputs)

    def _take(self, request_id: str, output: TokenOutput) -> list[TokenOutput]:
        """Return the answers' outputs when this was the search's last token."""
        place = self._waiting.get(request_id)
        if self._ended or place is None or output.finish_reason is None:
            return []
        if output.error is not None or not output.logprobs:
            return self._fail(output.error)
        del self._waiting[request_id]
        self._tops[place] = output.logprobs[0].top
        if self._steps == 1:
            self._cached_tokens = output.cached_tokens
        if self._waiting:
            return []
        self._beams.step(self._tops)
        if self._beams.over:
            return self._finish()
        try:
            self._submit()
        except EnginewrightError as error:
            return self._fail(error_info(error))
        return []

    def _fail(self, error: ErrorInfo | None) -> list[TokenOutput]:
        """End the search; without an error it was cancelled."""
        self.abort()
        reason = "cancelled" if error is None else "error"
        output = TokenOutput(self._request_id, finish_reason=reason, error=error)
        return [output] * self._params.n

    def _finish(self) -> list[TokenOutput]:
        self._ended = True
        wanted = self._params.logprobs
        outputs: list[TokenOutput] = []
        for beam in self._beams.best()[: self._params.n]:
            stop = beam.stopped_by
            logprobs = [
                TokenLogprob(entry.token_id, entry.logprob, entry.top[: wanted or 0])
                for entry in beam.entries
            ]
            outputs.append(
                TokenOutput(
                    self._request_id,
                    beam.token_ids,
                    None if wanted is None else logprobs,
                    "length" if stop is None else "stop",
                    None if stop is None or stop in self._eos else stop,
                    cached_tokens=self._cached_tokens,
                )
            )
        return outputs


def _check(params: SamplingParams) -> None:
    for name in _NOT_WITH_BEAMS:
        if getattr(params, name):
            raise RequestError(f"{name} does not go with beam search; leave one of them out.", name)
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    if penalties != (0, 0, 1):
        raise RequestError("Penalties do not go with beam search; leave one of them out.")
