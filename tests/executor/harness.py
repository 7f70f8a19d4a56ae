"""An executor over a fake session and a channel of lists, driven step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enginewright.executor.config import ExecutorConfig
from enginewright.executor.disk_tier import DiskTier
from enginewright.executor.loop import PyExecutor
from enginewright.executor.messages import (
    Abort,
    Command,
    GetStats,
    Reply,
    StatsReply,
    StepOutputs,
    Submit,
    TokenOutput,
)
from enginewright.executor.sampling import TokenParams
from enginewright.executor.speculative import Drafter
from enginewright.runtime.session import SessionLimits
from tests.support.fake_session import FakeSession


def make_limits(
    max_batch_size: int = 4,
    max_num_tokens: int = 16,
    max_seq_len: int = 64,
    num_blocks: int = 32,
    block_tokens: int = 4,
    vocab_size: int = 101,
) -> SessionLimits:
    return SessionLimits(
        max_batch_size, max_num_tokens, max_seq_len, num_blocks, block_tokens, vocab_size
    )


class ListChannel:
    """The executor's end of a channel: lists in place of sockets."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.replies: list[Reply] = []

    def receive(self, timeout: float | None) -> list[Command]:
        assert timeout is not None or self.commands, "an idle executor would sleep for ever"
        commands, self.commands = self.commands, []
        return commands

    def send(self, message: Reply) -> None:
        self.replies.append(message)


class Harness:
    """Checks the books after every step, and that each request ends once and says no more."""

    def __init__(
        self,
        limits: SessionLimits,
        max_queue: int = 100,
        disk: Path | None = None,
        disk_bytes: int = 1 << 20,
        identity: bytes = b"fake",
        drafter: Drafter | None = None,
        overlap: bool = False,  # without it a step's answers are there when `step` returns
        **config: Any,
    ) -> None:
        self.limits = limits
        self.session = FakeSession(limits)
        self.channel = ListChannel()
        self.disk = None
        if disk is not None:
            size = len(self.session.read_block(0))
            self.disk = DiskTier(disk, identity, size, disk_bytes, self.session)
        self.executor = PyExecutor(
            self.session,
            self.channel,
            ExecutorConfig(max_queue=max_queue, overlap=overlap, **config),
            drafter=drafter,
            disk=self.disk,
        )
        self.outputs: dict[str, list[TokenOutput]] = {}

    def submit(self, request_id: str, prompt: list[int], params: TokenParams) -> None:
        self.outputs.setdefault(request_id, [])
        self.channel.commands.append(Submit(request_id, prompt, params, 0.0))

    def abort(self, request_id: str) -> None:
        self.channel.commands.append(Abort(request_id))

    def step(self) -> None:
        if self.channel.commands:
            self.executor.fetch()
        self.executor.step()
        self.collect()
        self.executor.scheduler.check()

    def collect(self) -> None:
        replies, self.channel.replies = self.channel.replies, []
        for reply in replies:
            assert isinstance(reply, StepOutputs)
            for output in reply.outputs:
                seen = self.outputs[output.request_id]
                assert not seen or seen[-1].finish_reason is None, "news after the end"
                seen.append(output)

    def run(self, most_steps: int = 10_000) -> None:
        for _ in range(most_steps):
            self.step()
            if self.executor.scheduler.idle:
                return
        raise AssertionError("the executor does not come to an end")

    def stats(self) -> dict[str, object]:
        self.channel.commands.append(GetStats())
        self.executor.fetch()
        reply = self.channel.replies.pop()
        assert isinstance(reply, StatsReply)
        return reply.stats

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]

    def end(self, request_id: str) -> TokenOutput:
        return self.outputs[request_id][-1]
