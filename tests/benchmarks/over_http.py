"""The HTTP level: closed loops, a shared prefix and bursts, in interleaved rounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from . import load
from .peer.base import PeerError, Variant, WorkerLibrary
from .peer.models import Model
from .peer.process import Patience, ProcessError, Server
from .results import Results, say

NEW = 64  # tokens
PROMPT_WORDS = 127 - load.TEMPLATE_TOKENS
CLOSED = {1: 6, 8: 24, 32: 64}  # concurrency -> requests
SHARED_WORDS, SHARED_OWN_WORDS, SHARED_CLIENTS, SHARED_REQUESTS = 512, 63, 8, 24
BURSTS, BURST_SIZE, BURST_SECONDS = 3, 16, 4.0


class Target(Protocol):
    """What load is put on."""

    def __call__(
        self, texts: list[str], clients: int, starts: Sequence[float] | None
    ) -> dict[str, Any]:
        """Send the texts and return a summary of the answers."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def http(variants: Sequence[Variant], rounds: int, patience: Patience, out: Results) -> None:
    """Closed loops, a shared prefix and bursts, over HTTP or in process without a server."""
    running: dict[Variant, Target] = {}
    seen: set[tuple[str, str]] = set()
    try:
        for variant in variants:
            key = (variant.peer.name, variant.format)
            if key in seen:
                continue
            seen.add(key)
            try:
                target = _target(variant)
            except (PeerError, ProcessError, OSError) as error:
                out.fail(variant.name, "serving", error)
                continue
            if target is not None:
                running[Variant(variant.peer, variant.format)] = target
        for number in range(rounds + 1):  # the first one warms up
            for one in LOADS if number else WARM_UPS:
                for variant, target in running.items():
                    try:
                        if number == 0:
                            one.put_on(target)
                            continue
                        result, foreign = patience.measure(partial(one.put_on, target))
                    except (ProcessError, OSError) as error:
                        out.fail(variant.name, one.figure, error)
                        continue
                    _keep(out, variant.name, one.figure, result, foreign, f"{number}/{rounds}")
    finally:
        for target in running.values():
            target.close()


def _keep(
    out: Results, name: str, figure: str, result: dict[str, Any], foreign: float, number: str
) -> None:
    if result["failed"]:
        reason = f"{result['failed']} requests failed: {result.get('first_error')}"
        out.fail(name, figure, ValueError(reason))
    if not result["completed"]:
        return
    out.add(name, figure, result["output_throughput"], foreign)
    out.http.setdefault(name, {}).setdefault(figure, []).append(result)
    say(
        f"  {number} {name:<28} {figure:<18} {result['output_throughput']:8.1f} tok/s, TTFT p50 "
        f"{result['median_ttft_ms']:.0f} ms, ITL p99 {result['p99_itl_ms'] or 0:.0f} ms, "
        f"foreign {foreign:.2f} cores"
    )


@dataclass(frozen=True, slots=True)
class _Load:
    figure: str
    requests: int
    clients: int
    shared_words: int = 0
    own_words: int = PROMPT_WORDS
    starts: tuple[float, ...] | None = None

    def put_on(self, target: Target) -> dict[str, Any]:
        """Run it with prompts that no run before has used."""
        texts = load.prompts(self.requests, self.own_words, self.shared_words)
        return target(texts, self.clients, self.starts)


_SHARED = _Load(
    "http_shared_prefix", SHARED_REQUESTS, SHARED_CLIENTS, SHARED_WORDS, SHARED_OWN_WORDS
)
_BURST_STARTS = tuple(BURST_SECONDS * (i // BURST_SIZE) for i in range(BURSTS * BURST_SIZE))
LOADS = (
    *(_Load(f"http_{clients}", requests, clients) for clients, requests in CLOSED.items()),
    _SHARED,
    _Load("http_bursts", len(_BURST_STARTS), len(_BURST_STARTS), starts=_BURST_STARTS),
)
WARM_UPS = (_Load("warm-up", 8, 8), replace(_SHARED, requests=SHARED_CLIENTS))


class _HttpTarget:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._extra: dict[str, Any] | None = None

    def __call__(
        self, texts: list[str], clients: int, starts: Sequence[float] | None
    ) -> dict[str, Any]:
        server = self._server
        if server.process.poll() is not None:
            raise ProcessError(f"{server.name} has ended: {server.last_words()}")
        address = ("127.0.0.1", server.port, server.model)
        run = load.drive(*address, texts, clients, NEW, starts, self._extra)
        answers, seconds = asyncio.run(run)
        if self._extra is None and all("ignore_eos" in a.error for a in answers):
            self._extra = {}  # a server that refuses the field
            return self(texts, clients, starts)
        return load.summary(answers, seconds)

    def close(self) -> None:
        self._server.close()


class _InProcessTarget:
    """A library with continuous batching and no server; prompts are tokenized beforehand."""

    def __init__(self, one: WorkerLibrary, model: Model) -> None:
        self._library, self._model = one, model

    def __call__(
        self, texts: list[str], clients: int, starts: Sequence[float] | None
    ) -> dict[str, Any]:
        template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        filler = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
        template = f"<|im_start|>system\n{filler}<|im_end|>\n{template}"
        ids = [self._model.tokenizer.encode(template.replace("{}", text)) for text in texts]
        begin = time.perf_counter()
        rows = self._library.worker.call(
            "load",
            prompts=ids,
            starts=list(starts or [0.0] * len(ids)),
            concurrency=clients,
            new=NEW,
            seconds=600,
        )
        seconds = max(time for row in rows for time in row["times"])
        assert seconds <= time.perf_counter() - begin
        mean = sum(map(len, ids)) // len(ids)
        answers = [load.Answer(row["sent"], row["times"], row["tokens"], mean) for row in rows]
        return load.summary(answers, seconds)

    def close(self) -> None:
        self._library.close()


def _target(variant: Variant) -> Target | None:
    peer = variant.peer
    server = peer.serve(variant.format)
    if server is not None:
        return _HttpTarget(server)
    if "genai" in peer.paths:
        one = peer.open(Variant(peer, variant.format, "genai"))
        assert isinstance(one, WorkerLibrary)
        assert peer.model is not None
        return _InProcessTarget(one, peer.model)
    return None
