"""Token ids to text, one token at a time, and the stop strings found on the way."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from .tokenizer import Tokenizer

# Prompt tokens that give the first output token its context (leading space, open character).
_SEED_TOKENS = 8


class Detokenizer:
    """Incremental decoding of one answer.

    The pieces that `push` and `flush` return join to the text of the whole answer as it reads after
    its prompt. A character whose bytes are spread over tokens comes out with its last token.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        seed = list(prompt_token_ids[-_SEED_TOKENS:])
        if self._decode(seed).endswith("\ufffd"):
            seed = []  # the prompt ends inside a character: the answer is read by itself
        self._emitted = seed  # ids of the newest piece that was returned
        self._pending: list[int] = []  # ids pushed since
        self._stream = DecodeStream(ids=seed, skip_special_tokens=skip_special_tokens)

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is complete with it, possibly none."""
        self._pending.append(token_id)
        try:
            text = self._tokenizer.stream_step(self._stream, token_id)
        except Exception:  # "invalid prefix": a decoder that rewrites what it already gave
            text = self.flush()
            self._stream = DecodeStream(ids=self._emitted, skip_special_tokens=self._skip)
        if text is None:
            return ""
        if self._pending:
            self._emitted, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """Return what is still held, broken characters as U+FFFD; the answer has ended."""
        if not self._pending:
            return ""
        before = self._decode(self._emitted)
        text = self._decode(self._emitted + self._pending)[len(before) :]
        self._emitted, self._pending = self._pending, []
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, self._skip)


class StopStrings:
    """Finds stop strings in text that arrives in pieces of any size.

    The match that completes first wins, and of several completing together the longest, so the
    result does not depend on where the pieces were cut.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._include = include_in_output
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take a piece; return the text that is safe to show and the stop string, if one is found.

        Text that may still become a stop string is held back.
        """
        if not self._stops:
            return text, None
        if not text:
            return "", None
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            start, stop = found
            self._held = ""
            return text[: start + len(stop) if self._include else start], stop
        held = self._held_length(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """Return the text held back; the answer has ended without a stop string."""
        text, self._held = self._held, ""
        return text

    def _first_match(self, text: str) -> tuple[int, str] | None:
        matches = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in matches if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _held_length(self, text: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
