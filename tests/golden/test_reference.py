"""The reference interpreter gives the logits that transformers computed for every tiny model."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginewright.builder.models.registry import build_network
from enginewright.builder.reference import Reference
from enginewright.converters import open_checkpoint
from tests.support.golden import GOLDEN_FOLDER, GOLDEN_MODELS, expected, prompt_batches

TOLERANCE = 1e-5
MAX_SEQ_LEN = 64


@pytest.mark.parametrize("chunk", [64, 7], ids=["whole", "chunks"])
@pytest.mark.parametrize("folder", GOLDEN_MODELS, ids=lambda folder: folder.name)
def test_logits_are_those_of_transformers(folder: Path, chunk: int) -> None:
    ids, logits = expected(folder)
    with open_checkpoint(str(folder)) as checkpoint:
        network = build_network(checkpoint.config, checkpoint.tensors, MAX_SEQ_LEN)
        reference = Reference(network)
        found = [reference.step(batch) for batch in prompt_batches(ids, chunk)]
    np.testing.assert_allclose(np.concatenate(found), logits, rtol=0, atol=TOLERANCE)


def test_no_family_is_without_a_golden_model() -> None:
    names = {folder.name.split("-")[0] for folder in GOLDEN_MODELS}
    assert names == {"llama", "mistral", "qwen2", "qwen3"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-linear", {"rope_scaling": None}),
        ("llama-llama3", {"rope_scaling": None}),
        ("llama-yarn", {"rope_scaling": None}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 9}),
        ("qwen2", {"window_layers": None}),
        ("qwen2", {"sliding_window": None}),
        ("qwen3", {"rope_theta": 20000.0}),
    ],
)
def test_the_logits_depend_on_what_the_model_is_there_for(
    name: str, changes: dict[str, Any]
) -> None:
    ids, logits = expected(GOLDEN_FOLDER / name)
    with open_checkpoint(str(GOLDEN_FOLDER / name)) as checkpoint:
        config = dataclasses.replace(checkpoint.config, **changes)
        reference = Reference(build_network(config, checkpoint.tensors, MAX_SEQ_LEN))
        (found,) = (reference.step(batch) for batch in prompt_batches(ids, len(ids)))
    assert np.abs(found - logits).max() > 1000 * TOLERANCE
