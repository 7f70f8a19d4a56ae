"""A drafter that knows what the fake session will sample."""

from __future__ import annotations

from collections.abc import Mapping

from enginewright.executor.ngram_drafter import NgramDrafter
from enginewright.executor.request import Request
from tests.support.fake_session import next_token


class KnowingDrafter(NgramDrafter):
    """Guesses right, but for each `wrong`-th token."""

    name = "knowing"

    def __init__(self, vocab_size: int, wrong: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._wrong = wrong
        self._asked = 0

    def propose(self, wanted: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, (request, most) in wanted.items():
            params, known = request.params, list(request.tokens)
            for _ in range(most):
                self._asked += 1
                seed = params.seed if params.temperature > 0 else 0
                penalised = request.prompt_tokens if params.repetition_penalty != 1 else 0
                token = next_token(known, self._vocab_size, seed, penalised)
                known.append(token if self._asked % self._wrong else (token + 1) % self._vocab_size)
            found[number] = known[-most:]
        return found
