"""Prompt lookup: what followed the same few tokens earlier in the sequence is guessed to follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .request import Request

_LONGEST = 4  # tokens that are looked up, at most
_SHORTEST = 2


class NgramDrafter:
    """Guesses from each sequence's own tokens (Saxena 2023, "Prompt Lookup Decoding")."""

    name = "ngram"

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}  # by request number

    def propose(self, wanted: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        """Return guesses by request number, for requests and how many tokens they may have."""
        found: dict[int, list[int]] = {}
        for number, (request, most) in wanted.items():
            index = self._indices.get(number)
            if index is None:
                index = self._indices[number] = _Index()
            if guess := index.guess(request.tokens, most):
                found[number] = guess
        return found

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all requests but these."""
        for number in [number for number in self._indices if number not in numbers]:
            del self._indices[number]

    def close(self) -> None:
        """Hold nothing that needs an end."""


class _Index:
    """Where each run of tokens of a sequence ended last, but for the end of the sequence."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0  # ends that are entered

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Return up to `most` tokens that followed the latest earlier run like the last one."""
        for end in range(self._known + 1, len(tokens)):
            for size in range(_SHORTEST, min(_LONGEST, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._known = max(self._known, len(tokens) - 1)
        for size in range(min(_LONGEST, len(tokens)), _SHORTEST - 1, -1):
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                return _continued(tokens, end, most)
        return []


def _continued(tokens: list[int], end: int, most: int) -> list[int]:
    """Return `most` tokens from `end` on; past the end of the sequence the run repeats itself."""
    period = len(tokens) - end
    return [tokens[end + i % period] for i in range(most)]
