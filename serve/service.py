"""What an HTTP application serves: one engine's client, tokenizer, template and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import cached_property
from typing import cast
from weakref import WeakSet

import msgspec
from starlette.requests import HTTPConnection

from ..executor.sampling import SamplingParams, check_task
from ..runtime.errors import (
    ExecutorDiedError,
    ModelNotFoundError,
    ServerStoppingError,
)
from .async_generation import AsyncGeneration, Mailbox
from .client import Client
from .conversation.dialect import Dialect
from .dashboard.state import PageState
from .generation import Generation
from .metrics import Metrics
from .operation.context_limit import within_context
from .operation.request_record import current_record
from .operation.stats_probe import StatsProbe
from .operation.traffic import Traffic
from .response_store import ResponseStore
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
        max_context: int | None = None,
        hang_timeout: float = 60.0,
        strict: bool = False,
        keep_alive_seconds: float | None = 15.0,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.model_name = model_name
        self.max_body_bytes = max_body_bytes
        self.max_context = max_context  # tokens of prompt and answer; None: the engine's limit
        self.strict = strict  # unknown fields are refused
        self.keep_alive_seconds = keep_alive_seconds  # of a silent stream; None: no comments
        self.responses = ResponseStore()
        self.traffic = Traffic()
        self.probe = StatsProbe(client, hang_timeout)
        self.page = PageState(client, self.probe, self.traffic, model_name)
        self.created = int(time.time())
        self.metrics = Metrics(client, model_name, self.probe, self.traffic)
        self._live: WeakSet[AsyncGeneration] = WeakSet()

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError unless `name` is the served model or absent."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; this server has {self.model_name!r}",
                "model",
            )

    @property
    def embeds(self) -> bool:
        """Whether the engine gives vectors and no text."""
        return self.client.info.embedding_size > 0

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return a text's token ids."""
        if len(text) > _LONG_TEXT:
            return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)
        return self.tokenizer.encode(text, add_special_tokens)

    def generation(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        embeds: bool = False,
    ) -> AsyncGeneration:
        """Return a generation that is ready to start; `request_id` is the client's name for it.

        With `embeds` its answers are vectors. The key that a request came with is its tenant, so
        that keys share the engine fairly. Raises ExecutorDiedError; RequestError for what the
        engine does not give; ContextLengthError for what exceeds the server's own limit.
        """
        check_task(embeds, self.embeds)
        if not self.client.alive:
            raise ExecutorDiedError("the executor process has ended; restart the server")
        if self.max_context is not None:
            params = within_context(prompts, params, self.max_context)
        record = current_record.get()
        if record is not None and record.key_name:
            params = msgspec.structs.replace(params, tenant=record.key_name)
        pooling = self.client.info.pooling if embeds else None
        generation = Generation(self.client, self.tokenizer, prompts, params, pooling=pooling)
        prompt_tokens = sum(map(len, generation.prompts))
        observer = self.metrics.observe(prompt_tokens)
        live = AsyncGeneration(generation, self._mailbox, observer, request_id)
        self._live.add(live)
        return live

    def cancel(self, request_id: str) -> int:
        """End the requests of that id that run; return how many there were."""
        found = [one for one in list(self._live) if one.request_id == request_id]
        running = [one for one in found if not one.generation.finished]
        for generation in running:
            generation.abort()
        return len(running)

    def stop(self) -> None:
        """End every request that runs, with an error that says why."""
        for generation in list(self._live):
            generation.abort(ServerStoppingError("the server is stopping; try again elsewhere"))

    @cached_property
    def _mailbox(self) -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    @cached_property
    def dialect(self) -> Dialect:
        """How the model converses; raises RequestError if it cannot."""
        return Dialect(self.tokenizer)


def service_of(connection: HTTPConnection) -> Service:
    """Return the service of the application that a request came to."""
    return cast(Service, connection.app.state.service)
