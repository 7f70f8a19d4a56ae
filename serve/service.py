"""What an HTTP application serves: one engine's client, tokenizer, template and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast
from weakref import WeakSet

from starlette.requests import HTTPConnection

from ..executor.sampling import SamplingParams
from ..runtime.errors import (
    ExecutorDiedError,
    ModelNotFoundError,
    RequestError,
    ServerStoppingError,
)
from .async_generation import AsyncGeneration, Mailbox
from .chat_template import ChatTemplate
from .client import Client
from .generation import Generation
from .metrics import Metrics
from .tokenizer import Tokenizer

MAX_BODY_BYTES = 8 << 20
_LONG_TEXT = 16_384  # characters; tokenizing more would hold the event loop up


class Service:
    """Everything the endpoints share; used from one event loop."""

    def __init__(
        self,
        client: Client,
        tokenizer: Tokenizer,
        model_name: str,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.max_body_bytes = max_body_bytes
        self.created = int(time.time())
        self.metrics = Metrics(client, model_name)
        self._live: WeakSet[AsyncGeneration] = WeakSet()

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError unless `name` is the served model or absent."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; this server has {self.model_name!r}",
                "model",
            )

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return a text's token ids."""
        if len(text) > _LONG_TEXT:
            return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)
        return self.tokenizer.encode(text, add_special_tokens)

    async def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> list[int]:
        """Return a conversation's token ids; raises RequestError."""
        if not messages:
            raise RequestError("messages is empty; it needs at least one message", "messages")
        text = self._template.render(messages, **variables)
        return await self.encode(text, add_special_tokens=False)

    def generation(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> AsyncGeneration:
        """Return a generation that is ready to start; raises ExecutorDiedError."""
        if not self.client.alive:
            raise ExecutorDiedError("the executor process has ended; restart the server")
        generation = Generation(self.client, self.tokenizer, prompts, params)
        prompt_tokens = sum(map(len, generation.prompts))
        observer = self.metrics.observe(prompt_tokens)
        live = AsyncGeneration(generation, self._mailbox, observer)
        self._live.add(live)
        return live

    def stop(self) -> None:
        """End every request that runs, with an error that says why."""
        for generation in list(self._live):
            generation.abort(ServerStoppingError("the server is stopping; try again elsewhere"))

    @cached_property
    def _mailbox(self) -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate.of(self.tokenizer)


def service_of(connection: HTTPConnection) -> Service:
    """Return the service of the application that a request came to."""
    return cast(Service, connection.app.state.service)
