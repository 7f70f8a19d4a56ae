"""The executor's loop: fetch, schedule, launch, sample, wait, update, respond."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..runtime.errors import EnginewrightError, StepFailedError
from ..runtime.session import Session
from .config import ExecutorConfig
from .disk_tier import DiskTier
from .eviction import AdaptiveOrder
from .flight import Device, Flight
from .guided import Compiler, Vocabulary
from .intake import POLL_SECONDS, Arrival, Intake
from .kv_blocks import KvBlocks
from .kv_cache import KvCache
from .limits import SchedulerLimits
from .messages import (
    Abort,
    GetStats,
    Shutdown,
    StatsReply,
    StepOutputs,
    StepStats,
    Submit,
    TokenOutput,
    describe_error,
    error_info,
)
from .plan import StepPlan
from .pooling import Pooling, vector_params, with_vectors
from .prefix_tree import PrefixTree
from .sampling import check_task
from .scheduler import Scheduler
from .speculative import Drafter, Speculator
from .stats import ExecutorStats
from .step import StepPacker, unpack
from .transport import Channel


class PyExecutor:
    """One rank's loop over its session; requests come and answers leave through a channel."""

    def __init__(
        self,
        session: Session,
        channel: Channel,
        config: ExecutorConfig,
        tokenizer: Path | None = None,
        drafter: Drafter | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        """`tokenizer` is the engine's tokenizer folder, which guided answers need."""
        limits = session.limits
        self.stats = ExecutorStats()
        blocks = KvBlocks(limits.num_blocks, limits.block_tokens)
        self.scheduler = Scheduler(
            SchedulerLimits(
                limits.max_batch_size,
                limits.max_num_tokens,
                limits.max_seq_len,
                limits.vocab_size,
                config.max_queue,
                config.max_queue_tokens,
                config.capacity_policy,
                config.chunk_policy,
                config.itl_target_ms,
                config.tenant_weights,
            ),
            KvCache(blocks, PrefixTree(blocks, AdaptiveOrder(limits.num_blocks)), disk),
            self.stats,
        )
        self._channel = channel
        packer = StepPacker(
            limits.max_batch_size, limits.max_seq_len, limits.block_tokens, limits.vocab_size
        )
        self._device = Device(session, packer)
        self._overlap = config.overlap
        self._flight: Flight | None = None  # the step that is on the device between two calls
        self._landed = 0.0  # when a step was done last
        self.busy_since: float | None = None  # since when the step in progress runs
        compiler = None
        if tokenizer is not None:
            compiler = Compiler(partial(Vocabulary, tokenizer, limits.vocab_size))
        self._intake = Intake(compiler, config.max_queue)
        self._speculator = None if drafter is None else Speculator(drafter, config.draft_tokens)
        self._embeds = limits.embedding_size > 0
        self._pooling = Pooling()
        self._stopping = False

    def run(self) -> None:
        """Serve until Shutdown or `stop`; then cancel what is left."""
        while True:
            self.fetch()
            if self._stopping:
                break
            self.step()
        self._respond([_cancelled(request_id) for request_id in self._intake.abort_all()])
        self._respond(self.scheduler.abort_all(time.monotonic()))
        self._land_last()

    def stop(self) -> None:
        """Make `run` end after the step in progress; safe in a signal handler."""
        self._stopping = True

    def fetch(self) -> None:
        """Take in what the channel has; an idle executor sleeps here until something comes."""
        outputs: list[TokenOutput] = []
        timeout = None if self.scheduler.idle and not self._stopping else 0.0
        if timeout is None and self._intake:
            timeout = POLL_SECONDS
        for command in self._channel.receive(timeout):
            if isinstance(command, Submit):
                arrival = self._intake.take(command)
                outputs += [] if arrival is None else self._submit(arrival)
            elif isinstance(command, Abort):
                if self._intake.abort(command.request_id):
                    outputs.append(_cancelled(command.request_id))
                output = self.scheduler.abort(command.request_id, time.monotonic())
                outputs += [] if output is None else [output]
            elif isinstance(command, GetStats):
                scheduler = self.scheduler
                stats = {
                    **self.stats.snapshot(),
                    **scheduler.report.gauges(),
                    **scheduler.report.live_view(),
                }
                if command.detail:
                    stats |= scheduler.report.records()
                if self._speculator is not None:
                    stats["speculative"] = self._speculator.snapshot()
                self._channel.send(StatsReply(stats))
            else:
                assert isinstance(command, Shutdown)
                self._stopping = True
        for arrival in self._intake.prepared():
            outputs += self._submit(arrival)
        self._respond(outputs)

    def step(self) -> None:
        """Compute one step, if there is anything to compute, and answer.

        With overlap a step that reads no prompt stays on the device when this returns, and the
        answers are those of the step before. One with prompts is long: what comes while it runs
        shall not wait for the step behind it too.
        """
        begun = self.busy_since = time.monotonic()
        waited = self._device.waited_seconds
        scheduler = self.scheduler
        self._respond(scheduler.expire(begun))
        before, self._flight = self._flight, None
        drafts: Mapping[int, list[int]] = {}
        speculates = self._speculator is not None and self._speculator.wants(len(scheduler.running))
        if self._speculator is not None and speculates:
            if before is not None:  # drafts go on from tokens that are known
                self._land(before)
            drafts = self._speculator.propose(*scheduler.draftable())
        plan = scheduler.schedule(begun, drafts)
        if plan is not None:
            try:
                self._flight = self._device.launch(plan, scheduler.running)
            except Exception as error:
                self._fail(plan, error)
        if before is not None and not speculates:
            self._land(before)
        begun, waited = self._count(before, begun, waited)
        flight = self._flight
        if flight is not None and flight.waits_for_tokens:
            self._device.sample(flight, scheduler.running)
        if flight is not None and not (self._overlap and flight.plan.num_context == 0):
            self._land_last()
            self._count(flight, begun, waited)
        self.busy_since = None

    def _count(self, flight: Flight | None, begun: float, waited: float) -> tuple[float, float]:
        """Count a step that has ended; return when the next one's time begins."""
        if flight is None:
            return begun, waited
        now, until = time.monotonic(), self._device.waited_seconds
        self.stats.step(flight.plan, until - waited, now - begun)
        return now, until

    def _land_last(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        """Wait for a step and answer its requests."""
        try:
            result, packed = self._device.wait(flight, self.scheduler.running)
            now = time.monotonic()
            output = unpack(result, packed)
            seconds = now - max(flight.launched, self._landed)
            if self._speculator is not None:
                self._speculator.landed(flight.plan, output, seconds)
        except Exception as error:
            self._fail(flight.plan, error)
            return
        self._landed = now
        scheduler = self.scheduler
        scheduler.measured(flight.plan, seconds)
        for number, error in packed.errors.items():
            self._respond(scheduler.fail_request(number, error, now))
        vectors: dict[str, bytes] = {}
        try:
            if result.hidden is not None:
                laid, running = packed.laid, scheduler.running
                vectors = self._pooling.take(flight.plan, laid, result.hidden, running)
            outputs = scheduler.update(flight.plan, output, now)
        except Exception as error:  # a bug of ours; whoever was not in the step goes on
            traceback.print_exc()
            self._fail(flight.plan, error)
            return
        scheduler.report.record(flight.plan, now, seconds)
        outputs = with_vectors(outputs, vectors)
        self._respond(outputs)
        if self._speculator is not None:
            self._speculator.keep(scheduler.running.keys())

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        self.stats.failed_steps += 1
        reason = StepFailedError(
            f"The step that computed this request failed: {describe_error(error)}"
        )
        self._respond(self.scheduler.fail(plan, reason, time.monotonic()))

    def _submit(self, arrival: Arrival) -> list[TokenOutput]:
        command = arrival.command
        try:
            if arrival.error is not None:
                self.stats.submitted += 1
                self.stats.rejected(arrival.error.code)
                raise arrival.error
            check_task(command.params.pooling is not None, self._embeds)
            self.scheduler.submit(
                command.request_id,
                command.prompt_token_ids,
                vector_params(command.params) if self._embeds else command.params,
                command.sent,
                arrival.grammar,
                arrival.processors,
            )
        except Exception as error:  # a bug met by one request must not end the others
            if not isinstance(error, EnginewrightError):
                traceback.print_exc()
            info = error_info(error)
            return [TokenOutput(command.request_id, finish_reason="error", error=info)]
        return []

    def _respond(self, outputs: list[TokenOutput]) -> None:
        if outputs:
            stats = StepStats(self.stats.steps, *self.scheduler.report.counts())
            self._channel.send(StepOutputs(outputs, stats))


def _cancelled(request_id: str) -> TokenOutput:
    return TokenOutput(request_id, finish_reason="cancelled")
