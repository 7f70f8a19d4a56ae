"""The times and token counts of one request, for the metrics and for its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .generation import Delta
from .operation.request_record import current_record

if TYPE_CHECKING:
    from .metrics import Metrics


class RequestObserver:
    """Times one request's choices; made where the request is handled."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._arrived = time.perf_counter()
        self._started = False
        self._record = current_record.get()
        # Of each choice: time of its first and of its newest token, and how many it has.
        self._choices: dict[int, tuple[float, float, int]] = {}
        if self._record is not None:
            self._arrived = self._record.begun
            self._record.prompt_tokens += prompt_tokens

    def on_delta(self, delta: Delta) -> None:
        """Take one delta of a choice."""
        now = time.perf_counter()
        count = len(delta.token_ids)
        if count:
            metrics = self._metrics
            metrics.generation_tokens.inc(count)
            seen = self._choices.get(delta.index)
            if seen is None:
                self._first_token(now, delta)
                self._choices[delta.index] = (now, now, count)
            else:
                first, newest, total = seen
                metrics.inter_token.observe((now - newest) / count)
                self._choices[delta.index] = (first, now, total + count)
        elif delta.embedding is not None:
            self._prompt_done()
        if delta.finish_reason is not None:
            self._end(now, delta)

    def _first_token(self, now: float, delta: Delta) -> None:
        metrics, waited = self._metrics, now - self._arrived
        metrics.first_token.observe(waited)
        if delta.queue_seconds is not None:
            metrics.queue_time.observe(delta.queue_seconds)
            metrics.prefill_time.observe(max(waited - delta.queue_seconds, 0.0))
        if not self._started and self._record is not None:
            self._record.first_token_seconds = waited
            self._record.queue_seconds = delta.queue_seconds
        self._prompt_done()
        if self._record is not None:
            self._record.cached_tokens += delta.cached_tokens

    def _prompt_done(self) -> None:
        """Count the prompt once, however many answers it has."""
        if not self._started:
            self._started = True
            self._metrics.prompt_tokens.inc(self._prompt_tokens)
            self._metrics.request_prompt_tokens.observe(self._prompt_tokens)

    def _end(self, now: float, delta: Delta) -> None:
        metrics, record = self._metrics, self._record
        if delta.error is not None and record is not None:
            record.error = f"{delta.error.code}: {delta.error}"
        if delta.error is not None and delta.error.http_status < 500 and not self._choices:
            return  # refused before it began: counted with the refusals, and nothing has ended
        metrics.end(delta.finish_reason or "error")
        metrics.end_to_end.observe(now - self._arrived)
        first, newest, total = self._choices.get(delta.index, (now, now, 0))
        if total:
            metrics.request_generation_tokens.observe(total)
            metrics.decode_time.observe(newest - first)
        if total > 1:
            metrics.per_output_token.observe((newest - first) / (total - 1))
        if record is not None:
            record.generation_tokens += total
            record.finish_reason = delta.finish_reason or "error"
            if total:
                record.last_token_seconds = newest - self._arrived
