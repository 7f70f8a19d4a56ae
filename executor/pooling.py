"""Pooling: from the hidden states of a text's tokens to the one vector that stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from ..runtime.session import Float32Array, StepResult
from .logit_rows import LogitRows
from .messages import TokenOutput
from .plan import StepPlan
from .request import Request
from .sampling import TokenParams


def vector_params(params: TokenParams) -> TokenParams:
    """Return the parameters that make the scheduler bring every token's row that pooling reads.

    A request for a vector is one whose answer ends with its first step; the mean needs a row for
    each token of the prompt, which is what log-probabilities of the prompt need.
    """
    rows = 0 if params.pooling == "mean" else None
    return msgspec.structs.replace(
        params,
        max_tokens=1,
        temperature=0.0,
        num_logprobs=-1,
        prompt_logprobs=rows,
        guided=None,
        eos_token_ids=(),
        stop_token_ids=(),
    )


def result_of(hidden: Float32Array, seconds: float) -> StepResult:
    """Return hidden states as a step's result, whose tokens mean nothing."""
    rows = len(hidden)
    zeros, empty = np.zeros(rows, np.float32), np.empty((rows, 0), np.float32)
    return StepResult(
        np.zeros(rows, np.int32), zeros, empty.astype(np.int32), empty, seconds, hidden
    )


class Pooling:
    """The sums of the texts that are being read.

    Rows are added in order, one by one, so that chunks of any size give the same bits.
    """

    def __init__(self) -> None:
        self._sums: dict[int, npt.NDArray[np.float64]] = {}  # by request number

    def take(
        self,
        plan: StepPlan,
        laid: LogitRows | None,
        hidden: Float32Array,
        running: Mapping[int, Request],
    ) -> dict[str, bytes]:
        """Take a step's rows in; return the vectors that are complete, by request id.

        A vector is f32, little-endian, of length 1.
        """
        self._forget(running)
        samples = {row: index for index, row in enumerate(plan.sample_rows)}
        done: dict[str, bytes] = {}
        for row, number in enumerate(plan.requests):
            request = running.get(number)
            if request is None:
                continue
            if row in plan.prompt_rows:
                assert laid is not None
                first = laid.prompt_firsts[row]
                self._add(number, hidden[first : first + plan.prompt_rows[row]])
            index = samples.get(row)
            if index is not None:
                last = index if laid is None else laid.firsts[index]
                self._add(number, hidden[last : last + 1])
                done[request.request_id] = _unit(self._sums.pop(number))
        return done

    def _add(self, number: int, rows: Float32Array) -> None:
        if number not in self._sums:
            self._sums[number] = np.zeros(rows.shape[1], np.float64)
        for row in rows:
            self._sums[number] += row

    def _forget(self, running: Mapping[int, Request]) -> None:
        """Drop the sums of requests that have ended; a paused one goes on where it stopped."""
        for number in [number for number in self._sums if number not in running]:
            del self._sums[number]


def with_vectors(outputs: Iterable[TokenOutput], vectors: Mapping[str, bytes]) -> list[TokenOutput]:
    """Return a step's outputs with their vectors, and without the token that stood for them."""
    return [
        msgspec.structs.replace(
            output,
            token_ids=[],
            prompt_logprobs=None,
            finish_reason="stop",
            embedding=vectors[output.request_id],
        )
        if output.request_id in vectors and output.error is None
        else output
        for output in outputs
    ]


def _unit(total: npt.NDArray[np.float64]) -> bytes:
    """Return the direction of a sum; that of the mean is the same."""
    length = float(np.sqrt(np.sum(total * total)))
    return (total / length if length else total).astype("<f4").tobytes()
