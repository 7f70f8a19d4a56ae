"""Sampling parameters: what a caller says, and the token-level part that the executor needs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..runtime.errors import RequestError

MAX_LOGPROBS = 20
MAX_CHOICES = 128
_SEED_RANGE = 1 << 64


class Guided(msgspec.Struct, frozen=True, array_like=True):
    """What an answer must look like.

    `value` is the schema as JSON text, the regular expression, the Lark or EBNF grammar, or the
    JSON list of choices; it is empty for `json_object`.
    """

    kind: Literal["json_schema", "json_object", "regex", "grammar", "choice"]
    value: str = ""

    @classmethod
    def json(cls, schema: str | Mapping[str, Any] | type | None = None) -> Guided:
        """Return JSON of a schema: its text, a mapping, or a class; without one, any object.

        A class is a dataclass, TypedDict, msgspec.Struct or pydantic model. Raises RequestError.
        """
        if schema is None:
            return cls("json_object")
        if isinstance(schema, type):
            schema = _schema_of(schema)
        text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
        return cls("json_schema", text)

    @classmethod
    def regex(cls, pattern: str) -> Guided:
        """Return text that the regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, text: str) -> Guided:
        """Return text of a grammar in Lark's notation, or llama.cpp's (GBNF)."""
        return cls("grammar", text)

    @classmethod
    def choice(cls, choices: Iterable[str]) -> Guided:
        """Return one of these texts."""
        return cls("choice", msgspec.json.encode(list(choices)).decode())


class TokenParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How one sequence is sampled and when it stops; every default is resolved."""

    max_tokens: int | None = None  # None: as many as fit
    min_tokens: int = 0
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # unsigned, 64 bits
    num_logprobs: int = -1  # -1: none; 0: the sampled token's; n: and the n likeliest
    eos_token_ids: tuple[int, ...] = ()  # empty when the end of text is ignored
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] = {}
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that never come
    guided: Guided | None = None
    prompt_logprobs: int | None = None  # n: each prompt token's and the n likeliest at its place
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds from submission to the end of the answer
    queue_timeout: float | None = None  # seconds from submission to the start
    cache_salt: str | None = None  # only requests of one salt share cached KV
    no_repeat_ngram_size: int = 0  # 0: off; over prompt and answer
    tenant: str | None = None  # who shares fairly with others; None: the salt stands for it
    pin: bool = False  # keep the prompt's KV until nothing else can make room
    logits_processor: bytes | None = None  # what executor.logits_processors made of callables
    pooling: Literal["last", "mean"] | None = None  # a vector is wanted, of these tokens


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are sampled and when they stop, with the names of TensorRT-LLM's LLM API."""

    max_tokens: int | None = 32  # None: as many as fit
    min_tokens: int = 0
    temperature: float | None = None  # None: 1.0
    top_k: int | None = None  # None, 0 or -1: off
    top_p: float | None = None  # None: 1.0
    min_p: float | None = None  # None: off
    seed: int | None = None  # None: drawn for each request
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None  # n: the sampled token's and the n likeliest
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    bad_words: list[str] | None = None  # texts that never come
    guided: Guided | None = None
    prompt_logprobs: int | None = None
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds from submission to the end of the answer
    queue_timeout: float | None = None  # seconds from submission to the start
    cache_salt: str | None = None
    tenant: str | None = None  # who shares fairly with others; None: the salt stands for it
    no_repeat_ngram_size: int | None = None  # None or 0: off; over prompt and answer
    best_of: int | None = None  # answers that are made, of which the n likeliest are given
    use_beam_search: bool = False  # the likeliest answers; best_of, or n, is the beams' number
    length_penalty: float = 1.0  # beams: their log-probability is divided by length ** this
    early_stopping: bool = True  # beams: end when as many answers have ended as there are beams
    # A callable or several: of all tokens so far and the next one's logits (numpy, [vocab]), which
    # it changes in place or returns anew.
    logits_processor: Any = None

    def validate(self) -> None:
        """Raise RequestError, naming the field, unless every value has its type and range."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), SamplingParams)
        except msgspec.ValidationError as error:
            raise RequestError(f"{error}.", _field_of(str(error))) from None
        _check_range("max_tokens", self.max_tokens, 1, math.inf)
        _check_range("min_tokens", self.min_tokens, 0, math.inf)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            message = f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}."
            raise RequestError(message, "min_tokens")
        _check_range("temperature", self.temperature, 0, math.inf)
        _check_range("top_k", self.top_k, -1, (1 << 31) - 1)
        _check_range("top_p", self.top_p, 0, 1)
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("n", self.n, 1, MAX_CHOICES)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _check_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _check_range("priority", self.priority, -(1 << 31), (1 << 31) - 1)
        _check_range("deadline", self.deadline, 0.001, math.inf)
        _check_range("queue_timeout", self.queue_timeout, 0, math.inf)
        _check_range("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 1 << 16)
        _check_range("length_penalty", self.length_penalty, -100, 100)
        _check_range("best_of", self.best_of, self.n, MAX_CHOICES)
        for value in (self.logit_bias or {}).values():
            _check_range("logit_bias", value, -100, 100)
        if "" in (self.bad_words or ()):
            raise RequestError("bad_words holds an empty string.", "bad_words")
        if "" in self.stop_strings:
            raise RequestError("stop holds an empty string, which would match at once.", "stop")

    def _dumped_processor(self) -> bytes | None:
        if self.logits_processor is None:
            return None
        from .logits_processors import dump_processors  # few need it, and it takes a while

        return dump_processors(self.logits_processor)

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def resolve(
        self,
        eos_token_ids: Iterable[int] = (),
        index: int = 0,
        bad_words: Iterable[Sequence[int]] = (),
    ) -> TokenParams:
        """Return the token-level part for choice `index`, whose seed is `seed + index`.

        `bad_words` are the token sequences that spell the bad words.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        top_k = max(self.top_k or 0, 0)
        greedy = temperature == 0 or top_k == 1 or top_p == 0
        seed = secrets.randbits(63) if self.seed is None else self.seed
        return TokenParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=0.0 if greedy else temperature,
            top_k=0 if greedy else top_k,
            top_p=1.0 if greedy else top_p,
            min_p=0.0 if greedy else self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=(seed + index) % _SEED_RANGE,
            num_logprobs=-1 if self.logprobs is None else self.logprobs,
            eos_token_ids=() if self.ignore_eos else tuple(eos_token_ids),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=self.logit_bias or {},
            bad_words=tuple(map(tuple, bad_words)),
            guided=self.guided,
            prompt_logprobs=self.prompt_logprobs,
            logits_processor=self._dumped_processor(),
            priority=self.priority,
            deadline=self.deadline,
            queue_timeout=self.queue_timeout,
            cache_salt=self.cache_salt,
            tenant=self.tenant,
            no_repeat_ngram_size=self.no_repeat_ngram_size or 0,
        )


def check_task(wants_vector: bool, embeds: bool) -> None:
    """Raise RequestError unless a request wants what the engine gives: a vector, or tokens."""
    if embeds and not wants_vector:
        raise RequestError(
            "This engine was built with --task embed: it gives vectors and writes no text. Use "
            "/v1/embeddings or LLM.embed, or an engine that was built to generate.",
            "model",
        )
    if wants_vector and not embeds:
        raise RequestError(
            "This engine was built to write text and gives no embeddings. Build one with "
            "`enginewright build --task embed`.",
            "model",
        )


def _schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a class. Raises RequestError for one that has none."""
    own = getattr(kind, "model_json_schema", None)
    if own is not None:  # pydantic
        return own()
    try:
        return msgspec.json.schema(kind)
    except (TypeError, RuntimeError) as error:
        message = f"The class {kind.__name__} has no JSON schema: {error}"
        raise RequestError(message, "guided") from None


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None or (low <= value <= high and math.isfinite(value)):
        return
    allowed = f"at least {low}" if math.isinf(high) else f"between {low} and {high}"
    raise RequestError(f"{name} is {value}, but it must be {allowed}.", name)


def _field_of(message: str) -> str | None:
    _, _, path = message.partition("`$.")
    name = path.split("`")[0].split("[")[0]
    return name or None
