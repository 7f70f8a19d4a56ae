"""The self-check: the finished engine against the plain f32 reference, on a few fixed prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from ..runtime.artifact import Engine
from ..runtime.errors import BuildError
from ..runtime.manifest import SelfCheckFigures
from ..runtime.session import Batch, Float32Array, Session, open_session
from .memory import release_free_memory
from .network import Network, Weight
from .progress import Progress
from .reference import BLOCK_TOKENS, Reference

KL_LIMITS = {
    "f32": 1e-6,  # only the order of float sums differs
    "f16": 0.005,  # 11 bits of mantissa in every product
    "bf16": 0.01,  # 8 bits of mantissa in every product; sound models stay below 0.001
    "int8": 0.05,  # sound models stay below 0.01; one wrong scale or a swapped row gives 1 and more
    "fp8": 0.1,  # 4 bits of mantissa in every weight
    "int4": 1.0,  # 4 bits by rounding alone cost a small model 0.3; a defect costs more
}
"""Mean KL in nats above which an engine of that format counts as wrong, not merely rounded."""

SEQUENCE_TOKENS = (40, 16, 8)
"""Lengths of the prompts: one spans two KV blocks, and the sum bounds the reference's time."""

_STEP_TOKENS = 32  # of the engine's steps, so that prompts are chunked and rows share a step
_TEXT = (
    "The sun rises in the east and sets in the west. Water freezes at zero degrees Celsius and "
    "boils at one hundred. There are seven days in a week and twelve months in a year, and the "
    "first month of the year is January."
)

Piece = tuple[int, int, int]  # sequence, first token, number of tokens


def self_check(
    engine: Engine,
    plain: Network,
    progress: Progress,
    opener: Callable[..., Session] | None = None,
) -> SelfCheckFigures:
    """Run `engine` and the reference on the same prompts and compare the logits of every token.

    `plain` is the model's network before any pass, with its head; `opener` opens what stands in for
    an engine that cannot run here. The hidden states of an engine that embeds become logits here,
    through that head, so that the same limits hold. The engine computes the prompts in chunks of
    several sequences at once, the reference each in one piece. Memory: one f32 weight at a time.
    Raises BuildError if the engine gives numbers that are not finite.
    """
    manifest = engine.manifest
    prompts = fixed_prompts(
        manifest.vocab_size, manifest.limits.max_seq_len, engine.tokenizer_folder
    )
    progress.advance(0, "reference")
    lengths = [len(prompt) for prompt in prompts]
    whole = [(index, 0, length) for index, length in enumerate(lengths)]
    expected = Reference(plain).step(make_batch(prompts, whole, BLOCK_TOKENS))
    progress.advance(0, "engine")
    release_free_memory()  # what packing and the reference left behind would add to the engine
    found = _engine_rows(engine, prompts, opener or open_session)
    if manifest.embeds:
        found = found @ _head_of(plain).T
    if not np.isfinite(found).all():
        raise BuildError(
            "the self-check found numbers that are not finite; the checkpoint or the kernels are "
            "wrong, and no engine was written"
        )
    formats = [manifest.quantization.weights, manifest.quantization.kv]
    if not manifest.embeds:
        formats.append(manifest.quantization.head)
    limit = max(KL_LIMITS[name] for name in formats)
    limit = max(limit, KL_LIMITS.get(manifest.quantization.activations, 0.0))
    return compare_logits(expected, found, sequences=len(prompts), kl_limit=limit)


def compare_logits(
    expected: Float32Array, found: Float32Array, sequences: int, kl_limit: float
) -> SelfCheckFigures:
    """Compare two [rows, vocab] arrays of logits; the KL is that of `found` from `expected`."""
    errors = np.abs(expected - found)
    kl = 0.0
    for left, right in zip(expected, found, strict=True):
        log_p, log_q = _log_softmax(left), _log_softmax(right)
        kl += float(np.sum(np.exp(log_p) * (log_p - log_q)))
    mean_kl = max(kl / len(expected), 0.0)
    return SelfCheckFigures(
        sequences=sequences,
        positions=len(expected),
        greedy_agreement=float(np.mean(expected.argmax(axis=1) == found.argmax(axis=1))),
        max_abs_error=float(errors.max()),
        mean_abs_error=float(errors.mean()),
        mean_kl=mean_kl,
        kl_limit=kl_limit,
        passed=mean_kl <= kl_limit,
    )


def fixed_prompts(vocab_size: int, max_seq_len: int, tokenizer_folder: Path) -> list[list[int]]:
    """Return the prompts: English where there is a tokenizer, else and besides fixed random ids."""
    random = np.random.default_rng(0)
    prompts = [random.integers(vocab_size, size=size).tolist() for size in SEQUENCE_TOKENS]
    file = tokenizer_folder / "tokenizer.json"
    if file.is_file():
        ids = Tokenizer.from_file(str(file)).encode(_TEXT, add_special_tokens=False).ids
        words = [token for token in ids if token < vocab_size]
        prompts[0] = words[: SEQUENCE_TOKENS[0]] or prompts[0]
    return [prompt[:max_seq_len] for prompt in prompts]


def plan_steps(lengths: Sequence[int], step_tokens: int) -> list[list[Piece]]:
    """Cut sequences into steps of at most `step_tokens` tokens, the sequences side by side."""
    share = max(1, step_tokens // len(lengths))
    pieces = [
        (index, start, min(share, length - start))
        for index, length in enumerate(lengths)
        for start in range(0, length, share)
    ]
    steps: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece[1], piece[0])):
        last = steps[-1] if steps else []
        held = sum(count for _, _, count in last)
        if not last or held + piece[2] > step_tokens or any(p[0] == piece[0] for p in last):
            steps.append([piece])
        else:
            last.append(piece)
    for step in steps:
        step.sort(key=lambda piece: piece[2] == 1)  # context rows first
    return steps


def make_batch(prompts: Sequence[Sequence[int]], step: list[Piece], block_tokens: int) -> Batch:
    """Return the batch of one step, with the logits of every token wanted.

    Each sequence owns the KV blocks that follow those of the sequence before it.
    """
    tables = _block_tables([len(prompt) for prompt in prompts], block_tokens)
    tokens = [token for index, start, count in step for token in prompts[index][start:][:count]]
    return Batch(
        token_ids=_int32(tokens),
        seq_starts=_int32([0, *np.cumsum([count for _, _, count in step])]),
        past_tokens=_int32([start for _, start, _ in step]),
        block_tables=np.ascontiguousarray(tables[[index for index, _, _ in step]]),
        logit_rows=np.arange(len(tokens), dtype=np.int32),
    )


def _head_of(plain: Network) -> Float32Array:
    """Return the weight that makes logits, [vocab, hidden]."""
    node = plain.producer(plain.outputs[0])
    assert node is not None
    weight = node.inputs[1]
    assert isinstance(weight, Weight)
    return weight.load()


def _engine_rows(
    engine: Engine, prompts: list[list[int]], opener: Callable[..., Session]
) -> Float32Array:
    """Return what the engine gives for every token, sequence by sequence, in chunked steps."""
    manifest = engine.manifest
    lengths = [len(prompt) for prompt in prompts]
    step_tokens = min(_STEP_TOKENS, manifest.limits.max_num_tokens, manifest.limits.max_batch_size)
    blocks = sum(-(-length // manifest.kv.block_tokens) for length in lengths)
    rows = np.empty((sum(lengths), manifest.output_size), np.float32)
    first_row = [0, *np.cumsum(lengths)]
    session = opener(
        engine,
        kv_cache_memory=blocks * manifest.kv.block_bytes,
        max_batch_size=step_tokens,
        max_num_tokens=step_tokens,
        huge_pages=False,  # a copy of the weights would not pay for so few steps
    )
    try:
        for step in plan_steps(lengths, step_tokens):
            logits = session.logits(make_batch(prompts, step, manifest.kv.block_tokens))
            for (index, start, count), part in zip(step, _split(logits, step), strict=True):
                rows[first_row[index] + start :][:count] = part
    finally:
        session.close()
    return rows


def _split(logits: Float32Array, step: list[Piece]) -> Iterator[Float32Array]:
    begin = 0
    for _, _, count in step:
        yield logits[begin : begin + count]
        begin += count


def _block_tables(lengths: list[int], block_tokens: int) -> npt.NDArray[np.int32]:
    counts = [-(-length // block_tokens) for length in lengths]
    tables = np.full((len(lengths), max(counts)), -1, np.int32)
    begin = 0
    for row, count in enumerate(counts):
        tables[row, :count] = np.arange(begin, begin + count)
        begin += count
    return tables


def _int32(values: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def _log_softmax(logits: Float32Array) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())
