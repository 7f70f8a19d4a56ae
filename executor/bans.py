"""Tokens that may not come next: the ends of bad words, and of n-grams that were there before."""

from __future__ import annotations

from collections.abc import Sequence

from .sampling import TokenParams


class Bans:
    """The forbidden tokens of one sequence, kept up as it grows."""

    def __init__(self, params: TokenParams) -> None:
        self._words = [list(word) for word in params.bad_words if word]
        self._ngrams = _Ngrams(params.no_repeat_ngram_size) if params.no_repeat_ngram_size else None

    def after(self, tokens: Sequence[int], ahead: Sequence[int]) -> list[int]:
        """Return what may not follow `tokens` and then `ahead`; `ahead` is forgotten again."""
        longest = max((len(word) for word in self._words), default=1)
        tail = [*tokens[max(0, len(tokens) - longest) :], *ahead]
        banned = [word[-1] for word in self._words if _ends_with(tail, word[:-1])]
        if self._ngrams is not None:
            banned += self._ngrams.repeats(tokens, ahead)
        return banned


class _Ngrams:
    """Which tokens followed each run of n - 1 tokens."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self._known = 0  # tokens that are entered

    def repeats(self, tokens: Sequence[int], ahead: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a run a second time."""
        before = self._size - 1
        assert self._known <= len(tokens), "the sequence became shorter"
        for end in range(max(self._known, before), len(tokens)):
            run = tuple(tokens[end - before : end])
            self._followers.setdefault(run, set()).add(tokens[end])
        self._known = len(tokens)
        tail = [*tokens[max(0, len(tokens) - before) :], *ahead]
        if len(tail) < before:
            return set()
        last = tuple(tail[len(tail) - before :])
        found = set(self._followers.get(last, ()))
        for end in range(before, len(tail)):
            if tuple(tail[end - before : end]) == last:
                found.add(tail[end])
        return found


def _ends_with(tokens: list[int], end: list[int]) -> bool:
    return not end or tokens[-len(end) :] == end


def has_bans(params: TokenParams) -> bool:
    """Whether a request has bad words or n-grams that may not repeat."""
    return bool(params.bad_words) or params.no_repeat_ngram_size > 0
