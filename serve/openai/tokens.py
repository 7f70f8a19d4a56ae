"""`/tokenize` and `/detokenize`: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...executor.sampling import SamplingParams
from ...runtime.errors import RequestError
from ..service import service_of
from .bodies import answer_headers, read_request
from .chat_types import ChatRequest, Message, ToolDefinition
from .errors import json_response


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolDefinition] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/detokenize`."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]
    model: str | None = None
    skip_special_tokens: bool | None = None


async def tokenize(request: Request) -> Response:
    """Answer the token ids of a prompt or of a conversation."""
    service = service_of(request)
    body = await read_request(request, TokenizeRequest)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either `prompt` or `messages`", "prompt")
    if body.messages is None:
        assert body.prompt is not None
        tokens = await service.encode(body.prompt, body.add_special_tokens is not False)
    else:
        chat = ChatRequest(
            messages=body.messages,
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        text = service.dialect.prompt(chat.conversation(), SamplingParams()).text
        tokens = await service.encode(text, body.add_special_tokens is True)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": service.client.info.max_seq_len,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = [
            service.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens
        ]
    return json_response(answer, headers=answer_headers(request))


async def detokenize(request: Request) -> Response:
    """Answer the text of token ids."""
    service = service_of(request)
    body = await read_request(request, DetokenizeRequest)
    service.check_model(body.model)
    vocabulary = service.client.info.vocab_size
    if body.tokens and max(body.tokens) >= vocabulary:
        raise RequestError(
            f"tokens holds {max(body.tokens)}, but the vocabulary ends at {vocabulary - 1}",
            "tokens",
        )
    text = service.tokenizer.decode(body.tokens, body.skip_special_tokens is True)
    return json_response({"prompt": text}, headers=answer_headers(request))
