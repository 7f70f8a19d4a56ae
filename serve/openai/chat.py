"""`/v1/chat/completions`: messages in, an assistant's message out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...executor.sampling import MAX_LOGPROBS
from ...runtime.errors import RequestError
from ..service import service_of
from .bodies import object_id, read_generation_request, request_id
from .chat_shape import ChatShape
from .chat_types import ChatRequest
from .streaming import answer
from .types import check_choices


async def chat_completions(request: Request) -> Response:
    """Answer one chat completion request."""
    service = service_of(request)
    body = await read_generation_request(request, ChatRequest)
    body.check_stream_options()
    body.check_beams()
    if body.best_of not in (None, body.n or 1) and not body.use_beam_search:
        raise RequestError("best_of of a chat needs `use_beam_search` to be true", "best_of")
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
    defaults = service.tokenizer.sampling_defaults
    params = body.sampling(defaults, max_tokens, _num_logprobs(body))
    check_choices(body.n, 1)
    check_choices(body.best_of, 1, "best_of")
    params = body.with_beams(params)
    params = body.with_prompt_logprobs(params)
    prompt = service.dialect.prompt(body.conversation(), params)
    ids = body.cut(await service.encode(prompt.text, add_special_tokens=False))
    generation = service.generation([ids], prompt.params, request_id(request))
    shape = ChatShape(service, body, object_id(request, "chatcmpl-"), ids, prompt.parser)
    return await answer(request, generation, shape, stream=bool(body.stream))


def _num_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs `logprobs` to be true", "top_logprobs")
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {top}; it must be from 0 to {MAX_LOGPROBS}", "top_logprobs"
        )
    return top if body.logprobs else None
