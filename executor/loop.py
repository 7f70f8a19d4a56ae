"""The executor's loop: fetch, schedule, launch, sample, wait, update, respond."""

from __future__ import annotations

import time
from contextlib import suppress

from ..runtime.errors import EnginewrightError, StepFailedError
from ..runtime.session import Session
from .kv_blocks import KvBlocks
from .messages import (
    Abort,
    GetStats,
    Shutdown,
    StatsReply,
    StepOutputs,
    StepStats,
    Submit,
    TokenOutput,
    error_info,
)
from .plan import StepOutput, StepPlan
from .policies import GuaranteedNoEvict
from .scheduler import Scheduler, SchedulerLimits
from .stats import ExecutorStats
from .step import StepPacker, unpack
from .transport import Channel


class PyExecutor:
    """One rank's loop over its session; requests come and answers leave through a channel."""

    def __init__(self, session: Session, channel: Channel, max_queue: int) -> None:
        limits = session.limits
        self.stats = ExecutorStats()
        self.scheduler = Scheduler(
            SchedulerLimits(
                limits.max_batch_size,
                limits.max_num_tokens,
                limits.max_seq_len,
                limits.vocab_size,
                max_queue,
            ),
            KvBlocks(limits.num_blocks, limits.block_tokens),
            GuaranteedNoEvict(),
            self.stats,
        )
        self._session = session
        self._channel = channel
        self._packer = StepPacker(limits.max_batch_size, limits.max_seq_len, limits.block_tokens)
        self._stopping = False

    def run(self) -> None:
        """Serve until Shutdown or `stop`; then cancel what is left."""
        while True:
            self.fetch()
            if self._stopping:
                break
            self.step()
        self._respond(self.scheduler.abort_all(time.monotonic()))

    def stop(self) -> None:
        """Make `run` end after the step in progress; safe in a signal handler."""
        self._stopping = True

    def fetch(self) -> None:
        """Take in what the channel has; an idle executor sleeps here until something comes."""
        outputs: list[TokenOutput] = []
        timeout = None if self.scheduler.idle and not self._stopping else 0.0
        for command in self._channel.receive(timeout):
            if isinstance(command, Submit):
                outputs += self._submit(command)
            elif isinstance(command, Abort):
                output = self.scheduler.abort(command.request_id, time.monotonic())
                outputs += [] if output is None else [output]
            elif isinstance(command, GetStats):
                stats = {**self.stats.snapshot(), **self.scheduler.gauges()}
                self._channel.send(StatsReply(stats))
            else:
                assert isinstance(command, Shutdown)
                self._stopping = True
        self._respond(outputs)

    def step(self) -> None:
        """Compute one step, if there is anything to compute, and answer."""
        begun = time.monotonic()
        plan = self.scheduler.schedule(begun)
        if plan is None:
            return
        try:
            output, device_seconds = self._compute(plan)
        except Exception as error:
            self.stats.failed_steps += 1
            reason = StepFailedError(f"The step that computed this request failed: {_text(error)}")
            self._respond(self.scheduler.fail(plan, reason, time.monotonic()))
            return
        now = time.monotonic()
        outputs = self.scheduler.update(plan, output, now)
        self._respond(outputs)
        self.stats.step(plan, device_seconds, time.monotonic() - begun)

    def _compute(self, plan: StepPlan) -> tuple[StepOutput, float]:
        batch, sampling = self._packer.pack(plan, self.scheduler.running)
        self._session.launch(batch)
        try:
            self._session.sample(sampling)
        except BaseException:
            with suppress(Exception):  # the first error counts; the device must be free again
                self._session.wait()
            raise
        result = self._session.wait()
        return unpack(result, sampling), result.step_seconds

    def _submit(self, command: Submit) -> list[TokenOutput]:
        try:
            self.scheduler.submit(
                command.request_id, command.prompt_token_ids, command.params, command.sent
            )
        except EnginewrightError as error:
            info = error_info(error)
            return [TokenOutput(command.request_id, finish_reason="error", error=info)]
        return []

    def _respond(self, outputs: list[TokenOutput]) -> None:
        if outputs:
            gauges = self.scheduler.gauges()
            stats = StepStats(
                self.stats.steps, gauges["running"], gauges["waiting"], gauges["free_blocks"]
            )
            self._channel.send(StepOutputs(outputs, stats))


def _text(error: Exception) -> str:
    return (
        str(error) if isinstance(error, EnginewrightError) else f"{type(error).__name__}: {error}"
    )
