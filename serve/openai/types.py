"""Bodies of OpenAI requests: what is accepted, of which type, and how it becomes SamplingParams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ...executor.sampling import MAX_CHOICES, SamplingParams
from ...runtime.errors import RequestError

MAX_STOPS = 64

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

# Plain fields: their name, type and meaning are those of SamplingParams.
_SHARED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "logit_bias",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
# Fields whose null means SamplingParams' own default.
_OPEN = ("n", "presence_penalty", "frequency_penalty", "repetition_penalty")


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options` of a request."""

    include_usage: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common; unknown fields are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: _Int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: _Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: _Int | None = None
    stop_token_ids: list[_TokenId] | None = None
    ignore_eos: bool = False
    min_tokens: _Int = 0
    logit_bias: dict[_TokenId, float] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(
        self,
        defaults: Mapping[str, float | int],
        max_tokens: int | None,
        logprobs: int | None,
    ) -> SamplingParams:
        """Return the checked SamplingParams; `defaults` fill what the request leaves open.

        Raises RequestError.
        """
        fields = {name: getattr(self, name) for name in _SHARED}
        given = fields | {name: getattr(self, name) for name in _OPEN}
        fields |= {name: defaults[name] for name in defaults if given[name] is None}
        fields |= {name: given[name] for name in _OPEN if given[name] is not None}
        params = SamplingParams(
            max_tokens=max_tokens, stop=self.stop or None, logprobs=logprobs, **fields
        )
        params.validate()
        if len(params.stop_strings) > MAX_STOPS:
            raise RequestError(f"stop has more than {MAX_STOPS} strings; give fewer", "stop")
        return params


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[Any]
    max_tokens: _Int | None = 16
    logprobs: _Int | None = None
    echo: bool | None = None
    suffix: Any = None
    best_of: _Int | None = None
    response_format: Any = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None


class ChatRequest(SamplingFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_tokens: _Int | None = None
    max_completion_tokens: _Int | None = None
    logprobs: bool | None = None
    top_logprobs: _Int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    response_format: Any = None


_Body = TypeVar("_Body", bound=SamplingFields)
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")


def decode_body(body: bytes, kind: type[_Body]) -> _Body:
    """Parse and check a request body.

    Raises RequestError; `param` names the field, as far as one is to blame.
    """
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _AT.search(message)
        field = re.split(r"[.\[]", found.group(1))[0] if found else None
        raise RequestError(f"the request body is not valid: {message}", field or None) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the request body is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise RequestError("the request body is not UTF-8") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply") from error
    return request


def refuse_unsupported(request: SamplingFields, *fields: str) -> None:
    """Raise RequestError for a field that asks for what this server does not do."""
    for field in fields:
        value = getattr(request, field)
        plain = field == "response_format" and value == {"type": "text"}
        plain = plain or (field == "tool_choice" and value in ("none", "auto"))
        if value and not plain:
            raise RequestError(f"`{field}` is not supported by this server; leave it out", field)


def check_choices(request: SamplingFields, num_prompts: int) -> None:
    """Raise RequestError when a request asks for too many choices at once."""
    n = 1 if request.n is None else request.n
    if n * num_prompts > MAX_CHOICES:
        raise RequestError(
            f"n is {n} for {num_prompts} prompts; prompts times n must be at most {MAX_CHOICES}",
            "n" if n > 1 else "prompt",
        )


def check_stream_options(request: SamplingFields) -> None:
    """Raise RequestError when `stream_options` comes without `stream`."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs `stream` to be true", "stream_options")
