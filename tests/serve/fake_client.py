"""An executor client without an executor: a thread that answers with tokens it was given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enginewright.executor.messages import ErrorInfo, ExecutorInfo, TokenLogprob, TokenOutput
from enginewright.executor.sampling import TokenParams

Sink = Callable[[TokenOutput], None]
MAX_SEQ_LEN = 2048


@dataclass
class _Live:
    prompt: list[int]
    params: TokenParams
    sink: Sink
    tokens: list[int]
    made: int = 0


class FakeClient:
    """Answers every request with `reply(prompt, params)`, one token a request and step.

    While `gate` is clear, no token is made. `aborted` lists the requests that were ended early.
    """

    def __init__(self, reply: Callable[[list[int], TokenParams], list[int]]) -> None:
        self.info = ExecutorInfo(
            max_seq_len=MAX_SEQ_LEN,
            max_batch_size=8,
            max_num_tokens=128,
            num_blocks=64,
            block_tokens=32,
            vocab_size=512,
            engine={"name": "fake"},
            open_seconds=0.001,
        )
        self.alive = True
        self.gate = threading.Event()
        self.gate.set()
        self.step_seconds = 0.0
        self.submitted: list[TokenParams] = []
        self.aborted: list[str] = []
        self._reply = reply
        self._live: dict[str, _Live] = {}
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(
        self, request_id: str, prompt_token_ids: list[int], params: TokenParams, sink: Sink
    ) -> None:
        with self._wake:
            self.submitted.append(params)
            tokens = self._reply(prompt_token_ids, params)
            self._live[request_id] = _Live(prompt_token_ids, params, sink, tokens)
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        with self._wake:
            if self._live.pop(request_id, None) is not None:
                self.aborted.append(request_id)

    def stats(self, detail: bool = False, timeout: float | None = None) -> dict[str, Any]:
        histogram = {"bounds": [1, 2], "counts": [3, 1, 0], "sum": 5.0, "count": 4}
        with self._lock:
            running = len(self._live)
        records: dict[str, Any] = {"iterations": [], "ended_requests": [], "requests": []}
        return {
            **(records if detail else {}),
            "running": running,
            "waiting": 0,
            "used_blocks": running,
            "free_blocks": 64 - running,
            "num_blocks": 64,
            "kv_tokens": 0,
            "context": 0,
            "block_states": "h" * running + "f" * (64 - running),
            "steps": 4,
            "failed_steps": 0,
            "busy_seconds": 0.5,
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "rejected_by_cause": {"overloaded": 2},
            "batch_size": histogram,
            "step_seconds": histogram,
            "host_seconds": histogram,
        }

    def kill(self) -> None:
        """Die as a process does: every request ends with an error."""
        self.alive = False
        error = ErrorInfo("the executor process has ended", "executor_died", 503)
        with self._lock:
            live, self._live = self._live, {}
        for request_id, request in live.items():
            request.sink(TokenOutput(request_id, finish_reason="error", error=error))

    def shutdown(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self.gate.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self.gate.wait()
            with self._wake:
                while not self._live and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                outputs = [self._step(request_id) for request_id in list(self._live)]
            for sink, output in outputs:
                sink(output)
            if self.step_seconds:
                time.sleep(self.step_seconds)

    def _step(self, request_id: str) -> tuple[Sink, TokenOutput]:
        live = self._live[request_id]
        if len(live.prompt) >= MAX_SEQ_LEN:
            del self._live[request_id]
            error = ErrorInfo("the prompt is too long", "context_length_exceeded", 400, "prompt")
            return live.sink, TokenOutput(request_id, finish_reason="error", error=error)
        token = live.tokens[live.made]
        live.made += 1
        finish, stop = None, None
        if token in live.params.eos_token_ids:
            finish = "stop"
        elif token in live.params.stop_token_ids:
            finish, stop = "stop", token
        elif live.made in (live.params.max_tokens, len(live.tokens)):
            finish = "length"
        if finish is not None:
            del self._live[request_id]
        return live.sink, TokenOutput(
            request_id,
            [token],
            _logprobs(token, live.params.num_logprobs),
            finish,
            stop,
            queue_seconds=0.001 if live.made == 1 else None,
            prompt_logprobs=_prompt_logprobs(live) if live.made == 1 else None,
        )


def _prompt_logprobs(live: _Live) -> list[TokenLogprob] | None:
    count = live.params.prompt_logprobs
    if count is None:
        return None
    return [(_logprobs(token, count) or [])[0] for token in live.prompt[1:]]


def _logprobs(token: int, count: int) -> list[TokenLogprob] | None:
    if count < 0:
        return None
    return [TokenLogprob(token, -0.5, [(token + rank, -0.5 - rank) for rank in range(count)])]
