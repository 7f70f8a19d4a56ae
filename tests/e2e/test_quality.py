"""The real model: the f32 engine is the reference's twin, the int8 engine is close to it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from enginewright.builder.models.registry import build_network
from enginewright.builder.reference import Reference
from enginewright.converters import open_checkpoint
from enginewright.runtime.artifact import open_engine
from enginewright.runtime.session import Batch
from enginewright.runtime.session_cpu import CpuSession
from enginewright.serve.tokenizer import Tokenizer

from .texts.prompts import PROMPTS

TEXTS = Path(__file__).parent / "texts"
NEW_TOKENS = 64
KL_LIMIT = 0.0035
ROWS = 32
WINDOW = 512  # tokens of a text that are scored together

Logits = npt.NDArray[np.float32]


def steps(ids: list[int], table: list[int], rows: int) -> list[Batch]:
    """Cut one sequence into steps of `rows` tokens, all of whose logits are wanted."""
    return [
        Batch(
            token_ids=np.array(ids[start : start + rows], np.int32),
            seq_starts=np.array([0, len(ids[start : start + rows])], np.int32),
            past_tokens=np.array([start], np.int32),
            block_tables=np.array([table], np.int32),
            logit_rows=np.arange(len(ids[start : start + rows]), dtype=np.int32),
        )
        for start in range(0, len(ids), rows)
    ]


def engine_logits(engine: Path, windows: list[list[int]]) -> list[Logits]:
    """Return the logits of every token of each window."""
    with contextlib.closing(CpuSession(open_engine(engine), kv_cache_memory=1 << 30)) as session:
        table = list(range(WINDOW // 32))
        return [
            np.concatenate([session.logits(batch) for batch in steps(ids, table, ROWS)])
            for ids in windows
        ]


def mean_kl(reference: list[Logits], found: list[Logits]) -> tuple[float, int]:
    """Return the mean KL divergence in nats over all positions but each window's first."""
    total, count = 0.0, 0
    for a, b in zip(reference, found, strict=True):
        p, q = log_softmax(a), log_softmax(b)
        divergence = (np.exp(p) * (p - q)).sum(axis=1)[1:]
        total, count = total + float(divergence.sum()), count + len(divergence)
    return total / count, count


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def test_f32_engine_and_reference_choose_the_same_tokens(
    checkpoint: Path, smollm2_f32_engine: Path
) -> None:
    """Greedy tokens of 20 prompts. By induction it is enough that the reference, given the engine's
    own tokens, finds each of them the likeliest."""
    tokenizer = Tokenizer(smollm2_f32_engine / "tokenizer")
    sequences: list[list[int]] = []
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    with contextlib.closing(
        CpuSession(open_engine(smollm2_f32_engine), kv_cache_memory=1 << 30)
    ) as session:
        for prompt in prompts:
            ids = list(prompt)
            logits = session.logits(steps(ids, list(range(8)), len(ids))[0])[-1]
            for _ in range(NEW_TOKENS):
                ids.append(int(logits.argmax()))
                batch = Batch(
                    token_ids=np.array(ids[-1:], np.int32),
                    seq_starts=np.array([0, 1], np.int32),
                    past_tokens=np.array([len(ids) - 1], np.int32),
                    block_tables=np.arange(8, dtype=np.int32)[None],
                    logit_rows=np.zeros(1, np.int32),
                )
                logits = session.logits(batch)[0]
            sequences.append(ids)
    with open_checkpoint(str(checkpoint)) as source:
        reference = Reference(build_network(source.config, source.tensors, 512))
        for number, (prompt, ids) in enumerate(zip(prompts, sequences, strict=True)):
            table = list(range(8 * number, 8 * number + 8))
            (batch,) = steps(ids[:-1], table, len(ids))
            found = reference.step(batch)[len(prompt) - 1 :].argmax(axis=1)
            assert found.tolist() == ids[len(prompt) :], PROMPTS[number]


@pytest.mark.parametrize("engine", ["smollm2_engine", "smollm2_int4_engine"])
@pytest.mark.parametrize("name", ["kl_text.txt", "ordinary.txt"])
def test_quantized_engine_is_close_to_f32(
    name: str,
    engine: str,
    smollm2_f32_engine: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """int4 too: the checkpoint's own weights have 4 bits."""
    quantized: Path = request.getfixturevalue(engine)
    ids = Tokenizer(quantized / "tokenizer").encode((TEXTS / name).read_text())
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    kl, positions = mean_kl(
        engine_logits(smollm2_f32_engine, windows), engine_logits(quantized, windows)
    )
    with capsys.disabled():
        print(f"\n{quantized.name}, {name}: mean KL {kl:.5f} over {positions} positions")
    assert kl <= KL_LIMIT
