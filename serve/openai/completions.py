"""`/v1/completions`: prompts in (text or token ids), their continuations out."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ..service import Service, service_of
from .bodies import answer_headers, object_id, read_generation_request, request_id
from .completion_shape import CompletionShape
from .errors import json_response
from .streaming import Usage, WholeChoice, answer
from .types import CompletionRequest, check_choices


async def completions(request: Request) -> Response:
    """Answer one completion request."""
    service = service_of(request)
    body = await read_generation_request(request, CompletionRequest)
    _check(body)
    prompts = read_prompts(body.prompt, "prompt")
    n = 1 if body.n is None else body.n
    best_of = n if body.best_of is None else body.best_of
    check_choices(best_of, len(prompts), "n" if best_of == n else "best_of")
    nothing = bool(body.echo) and body.max_tokens == 0  # the prompt alone is wanted
    beams = bool(body.use_beam_search)
    logprobs = 0 if best_of > n and body.logprobs is None and not beams else body.logprobs
    made = n if beams else best_of
    defaults = service.tokenizer.sampling_defaults
    params = body.sampling(defaults, 1 if nothing else body.max_tokens, logprobs, made)
    params = body.with_beams(params)
    if body.echo and body.logprobs is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=body.logprobs)
    params = body.with_prompt_logprobs(params)
    ids = [body.cut(await _encode(service, prompt, body)) for prompt in prompts]
    echoes = None
    if body.echo:
        echoes = [
            prompt
            if isinstance(prompt, str) and body.truncate_prompt_tokens is None
            else service.tokenizer.decode(kept, False)
            for prompt, kept in zip(prompts, ids, strict=True)
        ]
    shape = CompletionShape(service, body, object_id(request, "cmpl-"), ids, echoes)
    if nothing and params.prompt_logprobs is None:
        usage = Usage(sum(map(len, ids)))
        choices = [WholeChoice(finish_reason="length") for _ in range(len(ids) * made)]
        return json_response(shape.whole(choices, usage), headers=answer_headers(request))
    generation = service.generation(ids, params, request_id(request))
    return await answer(request, generation, shape, stream=bool(body.stream))


def _check(body: CompletionRequest) -> None:
    body.check_stream_options()
    body.check_beams()
    if body.use_beam_search and body.echo and body.logprobs is not None:
        message = "the prompt's logprobs do not go with a beam search; leave echo or logprobs out"
        raise RequestError(message, "logprobs")
    if body.suffix:
        raise RequestError(
            "suffix is not supported: the model writes forward only; put what follows into the "
            "prompt",
            "suffix",
        )
    if body.best_of is not None:
        if body.best_of < max(body.n or 1, 1):
            raise RequestError(f"best_of is {body.best_of}, less than n", "best_of")
        if body.stream and body.best_of > (body.n or 1):
            raise RequestError("best_of cannot be streamed; leave stream or best_of out", "best_of")
    if body.echo and body.stream and body.max_tokens == 0:
        raise RequestError("there is nothing to stream; set max_tokens or leave stream", "stream")


async def _encode(service: Service, prompt: str | list[int], body: CompletionRequest) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return await service.encode(prompt, body.add_special_tokens is not False)


def read_prompts(prompt: str | list[Any], field: str) -> list[str | list[int]]:
    """Read the four forms of a prompt: a text, token ids, or a list of either.

    Raises RequestError, with `field` to blame.
    """
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(type(item) is int for item in prompt):
        return [prompt]
    for item in prompt:
        ids = isinstance(item, list) and bool(item) and all(type(one) is int for one in item)
        if not (isinstance(item, str) or ids):
            break
    else:
        if prompt:
            return prompt
    raise RequestError(
        f"{field} must be a text, a list of token ids, or a list of either, none of them empty",
        field,
    )
