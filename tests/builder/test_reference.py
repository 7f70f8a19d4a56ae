"""The reference gives one result however a prompt is cut, batched or placed in blocks."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.network import Network
from enginewright.builder.passes.pipeline import run_pipeline
from enginewright.builder.reference import Reference
from enginewright.runtime.session import Batch
from tests.support.networks import FEATURES, MAX_SEQ_LEN, logits_of, make_network, two_prompts


def one(ids: np.ndarray, past: int, blocks: list[int]) -> Batch:
    return Batch(
        token_ids=ids.astype(np.int32),
        seq_starts=np.array([0, len(ids)], np.int32),
        past_tokens=np.array([past], np.int32),
        block_tables=np.array([blocks], np.int32),
        logit_rows=np.arange(len(ids), dtype=np.int32),
    )


@pytest.mark.parametrize("name", FEATURES)
def test_chunks_and_blocks_change_nothing(name: str) -> None:
    network = make_network(name)
    together = Reference(network).step(two_prompts())
    ids = two_prompts().token_ids[:40]
    alone = Reference(network)
    found = [alone.step(one(ids[i : i + 7], i, [11, 4])) for i in range(0, 40, 7)]
    np.testing.assert_allclose(np.concatenate(found), together[:40], atol=2e-5)


def test_a_shared_prefix_is_read_from_its_block() -> None:
    network = make_network()
    ids = two_prompts().token_ids[:40]
    whole = Reference(network).step(one(ids, 0, [0, 1]))
    shared = Reference(network)
    shared.step(one(ids[:32], 0, [6]))
    found = shared.step(one(ids[32:], 32, [6, 2]))
    np.testing.assert_allclose(found, whole[32:], atol=2e-5)


def test_only_wanted_rows_are_returned() -> None:
    network = make_network()
    batch = dataclasses.replace(two_prompts(), logit_rows=np.array([48, 3], np.int32))
    np.testing.assert_allclose(
        Reference(network).step(batch), logits_of(network)[[48, 3]], atol=2e-5
    )


def test_a_window_forgets_what_is_behind_it() -> None:
    network = make_network("mistral", num_layers=1)
    ids = two_prompts().token_ids[:40].copy()
    before = Reference(network).step(one(ids, 0, [0, 1]))
    ids[:33] = (ids[:33] + 1) % 160  # the window of the last token, 7, begins at 33
    after = Reference(network).step(one(ids, 0, [0, 1]))
    np.testing.assert_allclose(after[-1], before[-1], atol=2e-5)
    assert np.abs(after[-2] - before[-2]).max() > 1e-3


def lowered(weights: str) -> Network:
    # at a level that multiplies f32 rows by bf16 weights
    return run_pipeline(make_network("qwen3"), BuildConfig(weights=weights, isa="avx512"))


def test_weights_are_rounded_only_when_asked() -> None:
    plain, network = logits_of(make_network("qwen3")), lowered("bf16")
    np.testing.assert_allclose(logits_of(network), plain, atol=2e-5)
    rounded = np.abs(logits_of(network, fake_quantize=True) - plain).max()
    assert 1e-4 < rounded < 0.1


def test_quantized_activations_are_rounded_always() -> None:
    plain, network = logits_of(make_network("qwen3")), lowered("int8")
    activations = np.abs(logits_of(network) - plain).mean()
    both = np.abs(logits_of(network, fake_quantize=True) - plain).mean()
    assert 1e-4 < activations < both < 0.1


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_the_cache_is_rounded_as_asked(kv_dtype: str) -> None:
    network = make_network("qwen3")
    error = np.abs(Reference(network, kv_dtype).step(two_prompts()) - logits_of(network)).max()
    assert 1e-4 < error < 0.3


def test_the_first_step_keeps_no_weight_and_the_second_all() -> None:
    network = make_network()
    loads: list[str] = []
    for weight in network.weights():

        def counted(
            name: str = weight.name, load: Callable[[], np.ndarray] = weight._loader
        ) -> np.ndarray:
            loads.append(name)
            return load()

        weight._loader = counted
    reference = Reference(network)
    counts: list[int] = []
    for _ in range(3):
        loads.clear()
        reference.step(two_prompts())
        counts.append(len(loads))
    assert counts[0] > len(network.weights())  # what several nodes share is read for each
    assert counts[1:] == [len(network.weights()), 0]


BASE = two_prompts()
BROKEN = [
    ({"token_ids": np.full(49, 160, np.int32)}, "from 0 to 159"),
    ({"token_ids": np.full(49, -1, np.int32)}, "from 0 to 159"),
    ({"token_ids": BASE.token_ids[:-1]}, "do not cover"),
    ({"seq_starts": np.array([0, 49, 49], np.int32)}, "no tokens"),
    ({"past_tokens": np.array([-1, 0], np.int32)}, "negative past"),
    ({"past_tokens": np.array([0, MAX_SEQ_LEN], np.int32)}, "longer than max_seq_len 128"),
    ({"past_tokens": np.array([0, 24], np.int32)}, "needs 2 KV blocks"),
    ({"logit_rows": np.array([49], np.int32)}, "outside the step"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_a_batch_that_contradicts_itself_is_refused(
    changes: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Reference(make_network()).step(dataclasses.replace(BASE, **changes))
