"""A draft engine: a small model in a second session, whose likely tokens are the guesses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..runtime.errors import InputError
from ..runtime.session import Batch, Session
from .kv_blocks import KvBlocks
from .request import Request
from .sampling import TokenParams
from .sampling_table import SamplingTable


@dataclass(slots=True)
class _Draft:
    """One sequence in the draft engine."""

    slot: int
    tokens: list[int] = field(default_factory=list[int])  # whose KV is written
    blocks: list[int] = field(default_factory=list[int])


class DraftEngine:
    """Follows the sequences it is asked about in its own KV cache.

    A guess is sampled as the answer is: with its temperature, filters, seed and position, so that
    both draw the same token where the two models agree.
    """

    def __init__(self, session: Session, vocab_size: int, name: str) -> None:
        """Raise InputError if the draft engine's vocabulary is not the target's."""
        limits = session.limits
        if limits.vocab_size != vocab_size:
            raise InputError(
                f"the draft engine {name} has {limits.vocab_size} tokens and the engine has "
                f"{vocab_size}; take a draft of the same tokenizer"
            )
        self.name = name
        self._session = session
        self._limits = limits
        self._blocks = KvBlocks(limits.num_blocks, limits.block_tokens)
        self._table = SamplingTable(limits.max_batch_size, vocab_size)
        self._free_slots = list(range(limits.max_batch_size - 1, -1, -1))
        self._drafts: dict[int, _Draft] = {}  # by request number

    def propose(self, wanted: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        """Return guesses by request number, for requests and how many tokens they may have.

        A sequence that is far behind catches up by one step's tokens and gets no guess yet.
        """
        followed = {
            number: (request, most)
            for number, (request, most) in wanted.items()
            if self._follow(request, most)
        }
        if not followed:
            return {}
        guesses = self._catch_up(followed)
        while going := {
            number: followed[number]
            for number, guess in guesses.items()
            if len(guess) < followed[number][1]
        }:
            rows = [
                (request, guesses[number], guesses[number][-1:])
                for number, (request, _) in going.items()
            ]
            for number, token in zip(going, self._step(rows), strict=True):
                guesses[number].append(token)
        return guesses

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all requests but these."""
        for number in [number for number in self._drafts if number not in numbers]:
            draft = self._drafts.pop(number)
            self._blocks.free(draft.blocks)
            self._free_slots.append(draft.slot)

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _follow(self, request: Request, most: int) -> bool:
        """Make room for a sequence and its guesses; False if there is none."""
        needed = len(request.tokens) + most
        if needed > self._limits.max_seq_len:
            return False
        draft = self._drafts.get(request.number)
        if draft is None:
            if not self._free_slots:
                return False
            draft = self._drafts[request.number] = _Draft(self._free_slots.pop())
            # What a grammar, a ban or a logprob asks for is the target's business.
            self._table.enter_params(draft.slot, _plain(request.params))
        missing = max(self._blocks.blocks_for(needed) - len(draft.blocks), 0)
        if missing > self._blocks.num_free:
            return False
        draft.blocks += self._blocks.allocate(missing)
        _cut(draft.tokens, request.tokens)
        return True

    def _catch_up(self, followed: Mapping[int, tuple[Request, int]]) -> dict[int, list[int]]:
        """Compute what the answers have got since; return the first guess of who is up to date."""
        budget = self._limits.max_num_tokens
        rows: list[tuple[Request, list[int], list[int]]] = []
        for number, (request, _) in followed.items():
            known = len(self._drafts[number].tokens)
            count = min(budget, len(request.tokens) - known)
            if count:
                rows.append((request, [], request.tokens[known : known + count]))
                budget -= count
        tokens = self._step(rows)
        return {
            request.number: [token]
            for (request, _, _), token in zip(rows, tokens, strict=True)
            if len(self._drafts[request.number].tokens) == len(request.tokens)
        }

    def _step(self, rows: list[tuple[Request, list[int], list[int]]]) -> list[int]:
        """Compute the last list of each row; return the tokens that are drawn after it."""
        drafts = [self._drafts[request.number] for request, _, _ in rows]
        past = np.array([len(draft.tokens) for draft in drafts], np.int32)
        counts = np.array([len(new) for _, _, new in rows], np.int32)
        ends = past + counts
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        tables = np.full((len(rows), max(len(draft.blocks) for draft in drafts)), -1, np.int32)
        for row, draft in enumerate(drafts):
            tables[row, : len(draft.blocks)] = draft.blocks
        self._session.launch(
            Batch(
                token_ids=np.array([token for _, _, new in rows for token in new], np.int32),
                seq_starts=starts,
                past_tokens=past,
                block_tables=tables,
                logit_rows=starts[1:] - 1,
            )
        )
        slots = np.array([draft.slot for draft in drafts], np.intp)
        sampling, _ = self._table.pack(slots, ends, [None] * len(rows))
        self._session.sample(sampling)
        tokens: list[int] = self._session.wait().tokens.tolist()
        for draft, (_, _, new) in zip(drafts, rows, strict=True):
            draft.tokens += new
        return [max(token, 0) for token in tokens]


def _plain(params: TokenParams) -> TokenParams:
    return TokenParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
    )


def _cut(known: list[int], tokens: list[int]) -> None:
    """Cut `known` where it differs from `tokens`, and so that one token is left to compute."""
    length = min(len(known), len(tokens) - 1)
    while known[:length] != tokens[:length]:
        length -= 1
    del known[length:]
