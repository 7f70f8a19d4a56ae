"""The table of the API: every endpoint with its handler, and what goes in and comes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .anthropic.messages import count_tokens, create_message
from .anthropic.types import CountTokensRequest, MessagesRequest
from .openai import answers
from .openai.cancel import cancel
from .openai.chat import chat_completions
from .openai.chat_types import ChatRequest
from .openai.completions import completions
from .openai.embeddings import EmbeddingsRequest, embeddings
from .openai.models import get_model, list_models
from .openai.responses import create_response, delete_response, get_response
from .openai.responses_types import ResponsesRequest
from .openai.tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from .openai.types import CompletionRequest

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str  # as Starlette writes it
    handler: Handler
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None  # None: there is no good answer
    streams: bool = False  # with `stream` the answer is a stream of events

    @property
    def public_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/completions",
        completions,
        "Continue a prompt.",
        CompletionRequest,
        answers.Completion,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "Answer a conversation.",
        ChatRequest,
        answers.ChatCompletion,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/responses",
        create_response,
        "Answer input items with output items.",
        ResponsesRequest,
        answers.ResponseObject,
        streams=True,
    ),
    Endpoint(
        "GET",
        "/v1/responses/{response_id}",
        get_response,
        "Return a response that is kept.",
        answer=answers.ResponseObject,
    ),
    Endpoint(
        "DELETE",
        "/v1/responses/{response_id}",
        delete_response,
        "Forget a response.",
        answer=answers.DeletedResponse,
    ),
    Endpoint(
        "POST",
        "/v1/messages",
        create_message,
        "Answer a conversation, as Anthropic's API does.",
        MessagesRequest,
        answers.AnthropicMessage,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a conversation.",
        CountTokensRequest,
        answers.TokenCount,
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings,
        "Return vectors of texts, from an engine that was built for it.",
        EmbeddingsRequest,
        answers.EmbeddingList,
    ),
    Endpoint("GET", "/v1/models", list_models, "List the models.", answer=answers.ModelList),
    Endpoint(
        "GET",
        "/v1/models/{name:path}",
        get_model,
        "Describe a model.",
        answer=answers.ModelCard,
    ),
    Endpoint(
        "POST",
        "/v1/requests/{request_id}/cancel",
        cancel,
        "End a request that runs.",
        answer=answers.Cancelled,
    ),
    Endpoint("POST", "/tokenize", tokenize, "Return token ids.", TokenizeRequest, answers.Tokens),
    Endpoint(
        "POST",
        "/detokenize",
        detokenize,
        "Return the text of token ids.",
        DetokenizeRequest,
        answers.Detokenized,
    ),
)


def api_routes() -> list[Route]:
    """Return one route a path, so that a wrong method is told all that are right."""
    paths: dict[str, dict[str, Handler]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint.handler
    return [
        Route(path, _by_method(handlers), methods=list(handlers))
        for path, handlers in paths.items()
    ]


def _by_method(handlers: Mapping[str, Handler]) -> Handler:
    if len(handlers) == 1:
        return next(iter(handlers.values()))

    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return dispatch
