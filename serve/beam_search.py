"""Beam search: the likeliest answers of one prompt, a request of one token for each beam and step.

The beams' common tokens come from the executor's prefix cache, and a token has the same
log-probability however it is computed, so the search is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from ..executor.messages import ErrorInfo, TokenLogprob, TokenOutput, error_info
from ..executor.sampling import SamplingParams, TokenParams
from ..runtime.errors import EnginewrightError, RequestError
from .beams import Beams
from .client import Client

_NOT_WITH_BEAMS = (
    "guided",
    "bad_words",
    "logit_bias",
    "no_repeat_ngram_size",
    "prompt_logprobs",
    "logits_processor",
)


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
            tenant=self._params.tenant,
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
