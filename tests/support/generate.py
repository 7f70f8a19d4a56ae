"""A small driver of sessions: prompts in chunks, then token by token, in any company and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from enginewright.runtime.session import Sampling, Session, StepResult

from .cpu_engine import make_batch

TOP = 3  # logprobs of the likeliest tokens that every row asks for


def make_sampling(rows: int, **fields: Any) -> Sampling:
    """Return parameters of `rows` rows, greedy and without logprobs where `fields` says nothing.

    A field is one value for all rows, or an array; history and bias fields are arrays as they are.
    """
    per_row: dict[str, tuple[Any, Any]] = {
        "temperature": (0, np.float32),
        "top_k": (0, np.int32),
        "top_p": (1, np.float32),
        "min_p": (0, np.float32),
        "repetition_penalty": (1, np.float32),
        "presence_penalty": (0, np.float32),
        "frequency_penalty": (0, np.float32),
        "seeds": (0, np.uint64),
        "positions": (0, np.int32),
        "num_logprobs": (-1, np.int32),
        "prompt_lengths": (0, np.int32),
    }
    arrays: dict[str, Any] = {
        "history_starts": np.zeros(rows + 1, np.int32),
        "history": np.zeros(0, np.int32),
        "bias_starts": np.zeros(rows + 1, np.int32),
        "bias_ids": np.zeros(0, np.int32),
        "bias_values": np.zeros(0, np.float32),
        "masks": None,
    }
    assert set(fields) <= {*per_row, *arrays}
    for name, (default, dtype) in per_row.items():
        value = np.asarray(fields.get(name, default), dtype)
        arrays[name] = np.ascontiguousarray(np.broadcast_to(value, (rows,)))
    arrays.update({name: fields[name] for name in fields if name not in per_row})
    return Sampling(**arrays)


@dataclass
class Lane:
    """One sequence on its way through a session."""

    prompt: npt.NDArray[np.int32]
    table: npt.NDArray[np.int32]
    seed: int
    temperature: float
    new_tokens: int
    computed: int = 0
    tokens: list[int] = field(default_factory=list[int])
    trace: list[bytes] = field(default_factory=list[bytes])  # bits of each token's logprobs

    def take(self, chunk: int) -> npt.NDArray[np.int32]:
        """Return the ids of this lane's part of the next step; none when it has finished."""
        if self.computed < len(self.prompt):
            return self.prompt[self.computed : self.computed + chunk]
        return np.array(self.tokens[-1:] if len(self.tokens) < self.new_tokens else [], np.int32)


def make_lanes(
    prompts: Sequence[npt.NDArray[np.int32]],
    *,
    new_tokens: int = 6,
    blocks: int = 400,
    placement: int = 0,
) -> list[Lane]:
    """Give each prompt blocks, in an order drawn from `placement`; every other lane is sampled."""
    free = list(np.random.default_rng(placement).permutation(blocks).astype(np.int32))
    lanes: list[Lane] = []
    for i, prompt in enumerate(prompts):
        count = -(-(len(prompt) + new_tokens) // 32)
        table = np.array([free.pop() for _ in range(count)], np.int32)
        lanes.append(Lane(prompt, table, 1000 + i, 0.9 * (i % 2), new_tokens))
    return lanes


def run_lanes(session: Session, lanes: Sequence[Lane], chunk: int) -> None:
    """Run all lanes together, in the order given, until each has its tokens."""
    while True:
        # A step holds whole chunks only, so that `chunk` says how a prompt is cut.
        step: list[tuple[Lane, npt.NDArray[np.int32]]] = []
        room = session.limits.max_num_tokens
        for lane in lanes:
            ids = lane.take(chunk)
            if len(ids) and len(ids) <= room:
                step.append((lane, ids))
                room -= len(ids)
        if not step:
            return
        ends = np.cumsum([len(ids) for _, ids in step])
        wanted = [lane.computed + len(ids) >= len(lane.prompt) for lane, ids in step]
        batch = make_batch(
            [ids for _, ids in step],
            [lane.computed for lane, _ in step],
            [lane.table for lane, _ in step],
            ends[wanted] - 1,
        )
        for lane, ids in step:
            lane.computed += len(ids)
        rows = [lane for (lane, _), want in zip(step, wanted, strict=True) if want]
        session.launch(batch)
        session.sample(sampling_of(rows))
        note(rows, session.wait())


def sampling_of(rows: Sequence[Lane]) -> Sampling:
    """Return the parameters of these lanes' next tokens."""
    return make_sampling(
        len(rows),
        temperature=[lane.temperature for lane in rows],
        top_p=[0.95] * len(rows),
        seeds=[lane.seed for lane in rows],
        positions=[lane.computed for lane in rows],
        num_logprobs=[TOP] * len(rows),
    )


def note(rows: Sequence[Lane], result: StepResult) -> None:
    """Give each lane its token, and the bits of what came with it."""
    for i, lane in enumerate(rows):
        lane.tokens.append(int(result.tokens[i]))
        found = (result.logprobs[i : i + 1], result.top_ids[i], result.top_logprobs[i])
        lane.trace.append(b"".join(array.tobytes() for array in found))
