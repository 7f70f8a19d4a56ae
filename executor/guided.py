"""Guided decoding: grammars compiled by llguidance, and the mask of each constrained row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from ..runtime.errors import RequestError
from .sampling import Guided

MAX_CACHED = 64  # compiled grammars that are kept
_MAX_TEXT = 1 << 20  # characters of one grammar
_JSON_KINDS = ("json_schema", "json_object")

Uint32Array = npt.NDArray[np.uint32]


class Vocabulary:
    """The engine's tokens as llguidance sees them; made once, in a fraction of a second.

    `slices` are groups of tokens that speed up masks; JSON has its own.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Read `tokenizer.json` and the end-of-text ids of an engine's tokenizer folder."""
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self.eos_token_ids = _eos_token_ids(folder, text)
        if not self.eos_token_ids:
            raise RequestError(
                "The engine's tokenizer names no end-of-text token, without which a guided answer "
                "cannot end; leave the constraint out.",
                "guided",
            )
        self._plain = LLTokenizer(text, n_vocab=vocab_size, eos_token=self.eos_token_ids)
        self._json: LLTokenizer | None = None

    def for_kind(self, kind: str) -> LLTokenizer:
        """Return the tokenizer whose slices suit a kind of grammar."""
        if kind not in _JSON_KINDS:
            return self._plain
        if self._json is None:
            self._json = self._plain.with_slices(LLTokenizer.json_slices())
        return self._json


class Grammar:
    """One request's place in its grammar.

    The place is a function of the answer's tokens: it follows them forwards, and backwards when
    drafts were wrong.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = tuple(eos_token_ids)  # what the grammar ends with
        self._matcher = matcher
        self._seen: list[int] = []

    def fill(self, row: Uint32Array, answer: list[int], held_back: Sequence[int]) -> None:
        """Write the mask of the token that follows `answer` into a row of 32-bit words.

        `held_back` tokens are taken out unless nothing else is left. An answer that the grammar
        does not allow (drafts that will be refused) leaves the row open. Raises RequestError when
        the grammar is too complex to go on.
        """
        if not self._follow(answer):
            row.fill(0xFFFFFFFF)
            return
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            raise _grammar_error(self._matcher)
        if held_back:
            _take_out(row, held_back)

    def _follow(self, answer: list[int]) -> bool:
        """Move the matcher to the end of an answer; False if the grammar forbids a token of it."""
        seen = self._seen
        common = len(seen)
        while answer[:common] != seen[:common]:
            common -= 1
        if common < len(seen):
            self._matcher.rollback(len(seen) - common)
            del seen[common:]
        new = answer[common:]
        if not new:
            return True
        taken = self._matcher.try_consume_tokens(new)
        seen += new[:taken]
        if self._matcher.is_error():
            raise _grammar_error(self._matcher)
        return taken == len(new)


class Compiler:
    """Compiles grammars on a thread of its own and keeps the latest.

    `load` makes the vocabulary when the first grammar comes.
    """

    def __init__(self, load: Callable[[], Vocabulary]) -> None:
        self._load = load
        self._vocabulary: Vocabulary | None = None
        self._pool = ThreadPoolExecutor(1, "grammar compiler")
        self._kept: OrderedDict[Guided, LLMatcher] = OrderedDict()

    def compile(self, guided: Guided) -> Future[Grammar]:
        """Return a future of a grammar at its start; it raises RequestError for a bad one."""
        return self._pool.submit(self._compile, guided)

    def close(self) -> None:
        """End the thread after the grammar it works on."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, guided: Guided) -> Grammar:
        if self._vocabulary is None:
            self._vocabulary = self._load()
        kept = self._kept.get(guided)
        if kept is None:
            tokenizer = self._vocabulary.for_kind(guided.kind)
            kept = LLMatcher(tokenizer, grammar_of(guided), log_level=0)
            if kept.is_error():
                raise _grammar_error(kept)
            self._kept[guided] = kept
            if len(self._kept) > MAX_CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(guided)
        return Grammar(kept.deep_copy(), self._vocabulary.eos_token_ids)


def grammar_of(guided: Guided) -> str:
    """Return llguidance's form of a constraint; raises RequestError where that shows an error."""
    kind, value = guided.kind, guided.value
    if len(value) > _MAX_TEXT:
        raise RequestError(
            f"The {kind} has {len(value)} characters; at most {_MAX_TEXT} are taken.", "guided"
        )
    try:
        if kind == "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"})
        if kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(value)
        if kind == "regex":
            return LLMatcher.grammar_from_regex(value)
        if kind == "grammar":
            return LLMatcher.grammar_from_lark(any_to_lark(value))
        return _choice_grammar(value)
    except RequestError:
        raise
    except Exception as error:  # llguidance raises ValueError and kin, its GBNF reader anything
        raise RequestError(f"The {kind} cannot be read: {error}", "guided") from None


def _choice_grammar(value: str) -> str:
    try:
        choices = msgspec.json.decode(value, type=list[str])
    except msgspec.MsgspecError as error:
        message = f"The choices are not a JSON list of texts: {error}."
        raise RequestError(message, "guided") from None
    if not choices or "" in choices:
        raise RequestError("choice needs at least one text, and none may be empty.", "guided")
    texts = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    return LLMatcher.grammar_from_lark(f"start: {texts}")


def _grammar_error(matcher: LLMatcher) -> RequestError:
    lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
    text = " ".join(lines).split("<state>")[0].strip()
    return RequestError(f"The grammar cannot be followed: {text[:500]}", "guided")


def _take_out(row: Uint32Array, tokens: Sequence[int]) -> None:
    """Clear the bits of tokens, unless no bit would be left."""
    left = row.copy()
    for token in tokens:
        left[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
    if left.any():
        row[:] = left


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class _TokenizerConfig(msgspec.Struct):
    eos_token: str | dict[str, Any] | None = None


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def _eos_token_ids(folder: Path, tokenizer: str) -> list[int]:
    """Return the ids that end a text, as generation_config and tokenizer_config name them."""
    declared = _read(folder / "generation_config.json", _GenerationConfig).eos_token_id
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    text = _read(folder / "tokenizer_config.json", _TokenizerConfig).eos_token
    if isinstance(text, dict):
        text = text.get("content")
    added = msgspec.json.decode(tokenizer, type=_TokenizerFile).added_tokens
    ids = ids + [token.id for token in added if token.content == text]
    return list(dict.fromkeys(ids))


_Config = TypeVar("_Config", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Config]) -> _Config:
    return msgspec.json.decode(path.read_bytes() if path.is_file() else b"{}", type=kind)
