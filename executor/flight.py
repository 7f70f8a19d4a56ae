"""A step on the device: launched, perhaps sampled, not yet waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..runtime.errors import RequestError
from ..runtime.session import Session, StepResult
from .plan import StepPlan
from .pooling import result_of
from .request import Request
from .sampling_table import greedy_sampling
from .step import PackedSampling, StepPacker


@dataclass(slots=True)
class Flight:
    """One step in flight, and what went wrong with it so far."""

    plan: StepPlan
    num_rows: int  # logit rows
    launched: float  # time.monotonic()
    packed: PackedSampling | None = None  # None: not sampled yet
    error: Exception | None = None
    result: StepResult | None = None  # of an engine that embeds: known at once

    @property
    def waits_for_tokens(self) -> bool:
        """Whether it is not sampled because tokens of the step before were not known."""
        return self.packed is None and self.error is None and not self.plan.is_processed


class Device:
    """Brings plans onto a session and their results back; a failed step always leaves it."""

    def __init__(self, session: Session, packer: StepPacker) -> None:
        self._session = session
        self._packer = packer
        self._embeds = session.limits.embedding_size > 0
        self.waited_seconds = 0.0  # spent in waiting for results, in all

    def launch(self, plan: StepPlan, running: Mapping[int, Request]) -> Flight:
        """Start a step; sample it too if the host knows all that its sampling needs.

        What is raised here means that the step is not on the device; what goes wrong later is in
        the flight.
        """
        for source, target in plan.moves:
            if isinstance(source, bytes):
                self._session.write_block(target, source)
            else:
                self._session.copy_block(source, target)
        batch = self._packer.pack_batch(plan, running)
        flight = Flight(plan, len(batch.logit_rows), time.monotonic())
        if self._embeds:
            flight.packed = self._packer.pack_sampling(plan, running)
            hidden = self._session.logits(batch)
            flight.result = result_of(hidden, time.monotonic() - flight.launched)
            self.waited_seconds += flight.result.step_seconds
            return flight
        self._session.launch(batch)
        flight.launched = time.monotonic()
        if plan.is_processed or not plan.device_tokens or not self._packer.needs_tokens(plan):
            self.sample(flight, running)
        return flight

    def sample(self, flight: Flight, running: Mapping[int, Request]) -> None:
        """Queue the sampling of the step that was launched last."""
        try:
            if flight.plan.is_processed:  # logits first: they are sampled when they have changed
                self._session.sample(None)
                return
            packed = self._packer.pack_sampling(flight.plan, running)
            self._session.sample(packed.sampling)
            flight.packed = packed
        except Exception as error:
            flight.error = error
            with suppress(Exception):  # the first error counts; the step must leave the device
                self._session.sample(greedy_sampling(flight.num_rows))

    def wait(
        self, flight: Flight, running: Mapping[int, Request]
    ) -> tuple[StepResult, PackedSampling]:
        """Return the result of the oldest step; raises what went wrong with it.

        What the logits processors of the running requests raise is their requests' alone.
        """
        if flight.result is not None:
            assert flight.packed is not None
            return flight.result, flight.packed
        begun = time.monotonic()
        try:
            result = self._session.wait()
        except Exception as error:
            raise flight.error or error from None
        finally:
            self.waited_seconds += time.monotonic() - begun
        if flight.error is not None:
            raise flight.error
        if flight.plan.is_processed:
            return self._process(flight.plan, result, running)
        assert flight.packed is not None
        return result, flight.packed

    def _process(
        self, plan: StepPlan, result: StepResult, running: Mapping[int, Request]
    ) -> tuple[StepResult, PackedSampling]:
        """Have the processors change a step's logits, and sample them."""
        logits = result.logits
        assert logits is not None
        packed = self._packer.pack_sampling(plan, running)
        for index, row in enumerate(plan.sample_rows):
            request = running.get(plan.requests[row])
            if request is None or request.processors is None:
                continue
            first = index if packed.laid is None else packed.laid.firsts[index]
            try:
                request.processors.apply(request.tokens, logits[first])
            except RequestError as error:
                packed.errors[request.number] = error
        return self._session.sample_logits(logits, packed.sampling), packed
