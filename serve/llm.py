"""The LLM class: an engine in a Python program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from ..executor.config import DEFAULT_DISK_BYTES, ExecutorConfig
from ..executor.fork_guard import ForkGuard
from ..executor.sampling import SamplingParams, check_task
from ..runtime.errors import ExecutorDiedError, RequestError
from ..runtime.numa import NumaMode
from .chat_template import ChatTemplate
from .client import Client
from .generation import Generation, with_defaults
from .outputs import RequestOutput
from .tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
_Input = TypeVar("_Input")


class LLM:
    """One engine, opened in a process of its own, with TensorRT-LLM's LLM API.

    `kv_cache_memory` is in bytes; `numa` is "replicate", "interleave" or "none"; None leaves a
    choice to the engine and the machine. `speculative`
    is "ngram" or the folder of a draft engine. `kv_cache_disk` is a folder that keeps the KV cache
    beyond memory and restarts, in at most `kv_cache_disk_size` bytes. A `client` that is given is
    used instead of starting an executor, and closed with the LLM.

    Every method may be called from any thread. The process ends with `shutdown`, with the program,
    or when the LLM is forgotten and no request runs. A fork of this process cannot use the LLM:
    every call raises ForkedProcessError there, and `shutdown` does nothing.
    Raises EngineError, IncompatibleMachineError or OutOfMemoryError.
    """

    def __init__(
        self,
        engine: str | Path,
        *,
        threads: int | None = None,
        numa: NumaMode | None = None,
        kv_cache_memory: int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        speculative: str | Path | None = None,
        kv_cache_disk: str | Path | None = None,
        kv_cache_disk_size: int = DEFAULT_DISK_BYTES,
        client: Client | None = None,
    ) -> None:
        folder = Path(engine)
        self._guard = ForkGuard()
        if client is None:
            config = ExecutorConfig(
                threads=threads,
                numa=numa,
                kv_cache_memory=kv_cache_memory,
                max_batch_size=max_batch_size,
                max_num_tokens=max_num_tokens,
                speculative=None if speculative is None else str(speculative),
                kv_cache_disk=None if kv_cache_disk is None else str(kv_cache_disk),
                kv_cache_disk_size=kv_cache_disk_size,
            )
            from ..executor.client import ExecutorClient

            client = ExecutorClient.start(folder, config)
        self.client: Client = client
        try:
            self.tokenizer = Tokenizer(folder / "tokenizer")
        except BaseException:
            client.shutdown()
            raise

    def generate(
        self,
        inputs: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one prompt, or a list of prompts in its order.

        A prompt is a text or a list of token ids. `use_tqdm` shows a progress bar for lists on a
        terminal. Raises RequestError, or the error that ended a request. Ctrl-C ends the requests.
        """
        if _is_one(inputs):
            prompt = cast(Prompt, inputs)
            return self._all(self.generate_async, [prompt], sampling_params, False)[0]
        prompts = cast(Sequence[Prompt], inputs)
        return self._all(self.generate_async, prompts, sampling_params, use_tqdm)

    def generate_async(
        self,
        inputs: Prompt,
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        """Start answering one prompt and return its output, which grows.

        Never waits for the executor, so that an event loop may call it; a text is encoded here.
        Raises RequestError for parameters out of range.
        """
        if isinstance(inputs, str):
            return self._start(inputs, self.tokenizer.encode(inputs), sampling_params, streaming)
        return self._start(None, list(inputs), sampling_params, streaming)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> RequestOutput | list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template.

        A message is `{"role": ..., "content": ...}`.
        """
        if not messages or isinstance(messages[0], Mapping):
            conversation = cast(Sequence[Message], messages)
            return self._all(self.chat_async, [conversation], sampling_params, False)[0]
        conversations = cast(Sequence[Sequence[Message]], messages)
        return self._all(self.chat_async, conversations, sampling_params, use_tqdm)

    def chat_async(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        """Start answering one conversation and return its output, which grows."""
        if not messages:
            raise RequestError("messages is empty; it needs at least one message", "messages")
        prompt = self._template.render(messages)
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        return self._start(prompt, ids, sampling_params, streaming)

    def embed(
        self, inputs: Prompt | Sequence[Prompt], use_tqdm: bool = True
    ) -> RequestOutput | list[RequestOutput]:
        """Return the vector of one text, or of each in a list, as the outputs' `embedding`.

        It has the length 1, so that a product of two vectors is their cosine. Raises RequestError
        unless the engine was built with `--task embed`.
        """
        if _is_one(inputs):
            return self._all(self._embed, [cast(Prompt, inputs)], None, False)[0]
        return self._all(self._embed, cast(Sequence[Prompt], inputs), None, use_tqdm)

    def embed_async(self, inputs: Prompt) -> RequestOutput:
        """Start embedding one text and return its output, which waits and can be awaited."""
        return self._embed(inputs, None)

    def get_stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Return the executor's counters, gauges and histograms; waits for the step in progress.

        With `detail` there are also `iterations` (a record a step, with TensorRT-LLM's fields) and
        `ended_requests`, each since they were last asked for, and `requests`, those that wait or
        run. Raises ExecutorDiedError; TimeoutError when no answer has come in `timeout` seconds.
        """
        self._guard.check()
        return self.client.stats(detail, timeout)

    async def get_stats_async(
        self, detail: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return what `get_stats` does, without blocking the event loop."""
        return await asyncio.to_thread(self.get_stats, detail, timeout)

    def shutdown(self) -> None:
        """Cancel what runs and end the executor process; may be called again."""
        if not self._guard.inherited:
            self.client.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    async def __aenter__(self) -> LLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.shutdown)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate.of(self.tokenizer)

    def _embed(self, inputs: Prompt, params: SamplingParams | None) -> RequestOutput:
        is_text = isinstance(inputs, str)
        ids = self.tokenizer.encode(inputs) if is_text else list(inputs)
        return self._start(inputs if is_text else None, ids, params, False, embeds=True)

    def _start(
        self,
        prompt: str | None,
        token_ids: list[int],
        params: SamplingParams | None,
        streaming: bool,
        embeds: bool = False,
    ) -> RequestOutput:
        self._guard.check()
        check_task(embeds, self.client.info.embedding_size > 0)
        if not self.client.alive:
            raise ExecutorDiedError("the executor process has ended; make a new LLM")
        defaults = self.tokenizer.sampling_defaults
        if params is None:
            params = SamplingParams(**cast(dict[str, Any], defaults))
        if streaming and (params.use_beam_search or (params.best_of or params.n) > params.n):
            raise RequestError("The best answers are known at the end; leave streaming out.")
        generation = Generation(
            self.client,
            self.tokenizer,
            [token_ids],
            with_defaults(params, defaults),
            pooling=self.client.info.pooling if embeds else None,
        )
        output = RequestOutput(prompt, generation, streaming)
        output.start()
        return output

    def _all(
        self,
        start: Callable[[_Input, SamplingParams | None], RequestOutput],
        inputs: Sequence[_Input],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        each: list[SamplingParams | None]
        if params is None or isinstance(params, SamplingParams):
            each = [params] * len(inputs)
        else:
            each = list(params)
        if len(each) != len(inputs):
            raise RequestError(
                f"there are {len(inputs)} inputs but {len(each)} sampling_params; "
                "give one for all, or one each",
                "sampling_params",
            )
        outputs: list[RequestOutput] = []
        try:
            for one, its_params in zip(inputs, each, strict=True):
                outputs.append(start(one, its_params))
            for output in _with_progress(outputs, use_tqdm):
                output.result()
        except BaseException:
            for output in outputs:
                output.abort()
            raise
        return outputs


def _is_one(inputs: Prompt | Sequence[Prompt]) -> bool:
    if isinstance(inputs, str):
        return True
    return len(inputs) > 0 and not isinstance(inputs[0], str | Sequence)


def _with_progress(outputs: list[RequestOutput], show: bool) -> Iterable[RequestOutput]:
    if not (show and sys.stderr.isatty()):
        return outputs
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(outputs, description="Generating", console=console, transient=True)
