"""Bodies of OpenAI requests: what is accepted, of which type, and how it becomes SamplingParams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from ...executor.sampling import MAX_CHOICES, SamplingParams
from ...runtime.errors import RequestError
from .guided import GuidedFields

MAX_STOPS = 64
MAX_BAD_WORDS = 256

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

# Plain fields: their name, type and meaning are those of SamplingParams.
_SHARED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop_token_ids",
    "logit_bias",
    "bad_words",
    "cache_salt",
    "queue_timeout",
    "no_repeat_ngram_size",
)
# Fields whose null means SamplingParams' own default.
_OPEN = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
    "min_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "priority",
)


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage in every event


class RequestFields(GuidedFields, kw_only=True):
    """What every request for an answer may say; null is as good as absent.

    The fields of the last block are part of other servers' APIs and have no effect here.
    """

    model: str | None = None
    stream: bool | None = None
    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[_TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    min_tokens: Int | None = None
    logit_bias: dict[_TokenId, float] | None = None
    no_repeat_ngram_size: Int | None = None
    skip_special_tokens: bool | None = None
    priority: Int | None = None  # lower runs first
    timeout: float | None = None  # seconds from arrival to the end of the answer
    deadline_ms: float | None = None  # the same in milliseconds
    queue_timeout: float | None = None  # seconds from arrival to the start
    cache_salt: str | None = None
    request_id: Annotated[str, msgspec.Meta(pattern="^[!-~]{1,128}$")] | None = None

    user: Any = None
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    def deadline(self) -> float | None:
        """Return the seconds that the whole answer may take; raises RequestError."""
        if self.timeout is not None and self.deadline_ms is not None:
            raise RequestError("timeout and deadline_ms say the same; give one", "deadline_ms")
        name, seconds = "timeout", self.timeout
        if self.deadline_ms is not None:
            name, seconds = "deadline_ms", self.deadline_ms / 1000
        if seconds is not None and not 0.001 <= seconds <= 1e6:
            raise RequestError(
                f"{name} is {getattr(self, name)}; a request may take from a millisecond to a "
                "million seconds",
                name,
            )
        return seconds

    def sampling(
        self,
        defaults: Mapping[str, float | int],
        max_tokens: int | None,
        logprobs: int | None,
        choices: int | None = None,
    ) -> SamplingParams:
        """Return the checked SamplingParams; `defaults` fill what the request leaves open.

        `choices` takes the place of `n`. Raises RequestError.
        """
        given = {name: getattr(self, name) for name in (*_SHARED, *_OPEN)}
        fields: dict[str, Any] = {name: given[name] for name in _SHARED}
        fields |= {name: defaults[name] for name in defaults if given[name] is None}
        fields |= {name: given[name] for name in _OPEN if given[name] is not None}
        if choices is not None:
            fields["n"] = choices
        params = SamplingParams(
            max_tokens=max_tokens,
            stop=self.stop or None,
            logprobs=logprobs,
            guided=self.guided(),
            deadline=self.deadline(),
            **fields,
        )
        params.validate()
        if len(params.stop_strings) > MAX_STOPS:
            raise RequestError(f"stop has more than {MAX_STOPS} strings; give fewer", "stop")
        if len(params.bad_words or ()) > MAX_BAD_WORDS:
            raise RequestError(
                f"bad_words has more than {MAX_BAD_WORDS} texts; give fewer", "bad_words"
            )
        return params


class SamplingFields(RequestFields, kw_only=True):
    """What chat and completion requests have in common beside that."""

    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    best_of: Int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None

    def cut(self, ids: list[int]) -> list[int]:
        """Return the last tokens of a prompt, as many as the request wants to keep."""
        return ids if self.truncate_prompt_tokens is None else ids[-self.truncate_prompt_tokens :]

    def with_prompt_logprobs(self, params: SamplingParams) -> SamplingParams:
        """Return parameters that give the prompt's log-probabilities if they are asked for.

        Raises RequestError.
        """
        if self.prompt_logprobs is None:
            return params
        if self.stream:
            raise RequestError(
                "prompt_logprobs come with a whole answer; leave stream out", "prompt_logprobs"
            )
        if params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs and echo with logprobs say the same; give one", "prompt_logprobs"
            )
        params = msgspec.structs.replace(params, prompt_logprobs=self.prompt_logprobs)
        params.validate()
        return params

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_in_every_event(self) -> bool:
        """Whether each event of the stream carries the usage so far."""
        options = self.stream_options
        return options is not None and bool(options.continuous_usage_stats)

    def check_stream_options(self) -> None:
        """Raise RequestError when `stream_options` comes without `stream`."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs `stream` to be true", "stream_options")

    def check_beams(self) -> None:
        """Raise RequestError when fields do not go with a beam search, or need one."""
        if self.use_beam_search:
            if self.stream:
                message = "the answers of a beam search are known at its end; leave stream out"
                raise RequestError(message, "stream")
            return
        for name, neutral in (("length_penalty", (None, 1)), ("early_stopping", (None, False))):
            if getattr(self, name) not in neutral:
                raise RequestError(f"{name} needs `use_beam_search` to be true", name)

    def with_beams(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with what the request says of beams. Raises RequestError."""
        if not self.use_beam_search:
            return params
        width = params.n if self.best_of is None else self.best_of
        params = msgspec.structs.replace(
            params,
            use_beam_search=True,
            best_of=width,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=self.early_stopping is not False,
        )
        params.validate()
        return params


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[Any]
    max_tokens: Int | None = 16
    logprobs: Int | None = None
    echo: bool | None = None
    suffix: Any = None
    add_special_tokens: bool | None = None


_Body = TypeVar("_Body", bound=msgspec.Struct)
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.*?)`$")


def decode_body(body: bytes, kind: type[_Body]) -> _Body:
    """Parse and check a request body.

    Raises RequestError; `param` names the field, as far as one is to blame.
    """
    try:
        body.decode()  # strings of fields that do not exist are not looked into below
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _AT.search(message)
        field = re.split(r"[.\[]", found.group(1))[0] if found else None
        if not found and (missing := _MISSING.search(message)):
            field = missing.group(1)
        raise RequestError(f"the request body is not valid: {message}", field or None) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the request body is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise RequestError("the request body is not UTF-8") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply") from error
    return request


def unknown_fields(body: bytes, kind: type[msgspec.Struct]) -> list[str]:
    """Return the fields of a valid body that `kind` does not have."""
    found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return sorted(found.keys() - set(kind.__struct_encode_fields__))


def check_choices(n: int | None, num_prompts: int, field: str = "n") -> None:
    """Raise RequestError when a request asks for too many choices at once."""
    n = 1 if n is None else n
    if n * num_prompts > MAX_CHOICES:
        raise RequestError(
            f"{field} is {n} for {num_prompts} prompts; prompts times {field} must be at most "
            f"{MAX_CHOICES}",
            field if n > 1 else "prompt",
        )
