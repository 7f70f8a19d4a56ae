"""Messages between the executor process and its client."""

from __future__ import annotations

from array import array
from typing import Any, Literal

import msgspec

from ..runtime.errors import EnginewrightError, RequestError
from .sampling import TokenParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True):
    """An error as data: enough to answer HTTP with, or to raise it again elsewhere."""

    message: str
    code: str
    http_status: int
    param: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of a sampled token and of the likeliest tokens at its place."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # descending


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one request: tokens that are new, or its end, or both.

    A request gets exactly one output that has a `finish_reason`, and it is the last. A token that
    ended the request (end of text or a stop token) is the last of `token_ids`.
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id that ended it; None for the end of text
    error: ErrorInfo | None = None
    cached_tokens: int = 0
    queue_seconds: float | None = None  # from arrival to start; with the first token
    prefill_seconds: float | None = None  # from start to first token; with the first token
    # Of the prompt's second token and those after it; with the first token, where asked for.
    prompt_logprobs: list[TokenLogprob] | None = None
    embedding: bytes | None = None  # f32, little-endian; instead of tokens


class StepStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of the executor after the step that the outputs come from."""

    step: int
    running: int
    waiting: int
    free_blocks: int


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """Run a request."""

    request_id: str
    prompt_token_ids: list[int]
    params: TokenParams
    sent: float  # time.monotonic() at the client; the clock is the machine's


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """End a request; one that is unknown or has ended is left alone."""

    request_id: str


class GetStats(msgspec.Struct, frozen=True, array_like=True, tag="get_stats"):
    """Ask for a StatsReply; with `detail` also for the records of steps and requests."""

    detail: bool = False


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Cancel everything and end the process."""


class ExecutorInfo(msgspec.Struct, frozen=True):
    """What an executor that is ready can hold, and what it runs."""

    max_seq_len: int  # tokens, prompt and answer
    max_batch_size: int  # sequences in a step
    max_num_tokens: int  # tokens in a step
    num_blocks: int
    block_tokens: int
    vocab_size: int
    engine: dict[str, Any]  # facts of the engine, for people
    open_seconds: float  # time to open engine and session
    embedding_size: int = 0  # numbers of a vector; 0: the engine writes text
    pooling: Literal["last", "mean"] = "last"  # which tokens make a vector


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The engine is open and requests may come."""

    info: ExecutorInfo


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The engine could not be opened."""

    error: ErrorInfo


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """News of several requests."""

    outputs: list[TokenOutput]
    stats: StepStats


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Everything that is counted; see ExecutorStats.snapshot."""

    stats: dict[str, Any]


Command = Submit | Abort | GetStats | Shutdown
Reply = Ready | Failed | StepOutputs | StatsReply


def checked_submit(
    request_id: str, prompt_token_ids: list[int], params: TokenParams, sent: float
) -> Submit:
    """Build a Submit whose values have the types they claim; raises RequestError."""
    try:
        prompt = msgspec.convert(prompt_token_ids, list[int])
        params = msgspec.convert(msgspec.structs.astuple(params), TokenParams)
    except msgspec.ValidationError as error:
        raise RequestError(f"The request cannot be sent: {error}.") from None
    return Submit(request_id, prompt, params, sent)


def floats_of(embedding: bytes) -> list[float]:
    """Return the numbers of an embedding; every machine we run on is little-endian."""
    return list(array("f", embedding))


def error_info(error: BaseException) -> ErrorInfo:
    """Describe an error as data; one that is not ours keeps its class in the message."""
    if isinstance(error, EnginewrightError):
        param = error.param if isinstance(error, RequestError) else None
        return ErrorInfo(str(error), error.code, error.http_status, param)
    base = EnginewrightError
    return ErrorInfo(describe_error(error), base.code, base.http_status)


def describe_error(error: BaseException) -> str:
    """Return an error's message; with its class where it is not one of ours."""
    return (
        str(error) if isinstance(error, EnginewrightError) else f"{type(error).__name__}: {error}"
    )


def to_exception(info: ErrorInfo) -> EnginewrightError:
    """Rebuild the error that `error_info` described."""
    found = _class_of(EnginewrightError, info.code) or EnginewrightError
    if issubclass(found, RequestError):
        return found(info.message, info.param)
    return found(info.message)


def _class_of(base: type[EnginewrightError], code: str) -> type[EnginewrightError] | None:
    if base.code == code:
        return base
    for child in base.__subclasses__():
        if found := _class_of(child, code):
            return found
    return None
