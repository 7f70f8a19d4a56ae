"""Logits for the host and blocks for the disk, on a session whose device is the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from enginewright.runtime.errors import StepFailedError
from tests.support.cpu_engine import make_batch
from tests.support.generate import make_sampling
from tests.support.gpu_engine import GpuSpec, export_engine, stand_in

SPECS = [GpuSpec("llama"), GpuSpec("qwen2", kv_dtype="int8")]
IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("spec", SPECS, ids=["llama", "int8 cache"])
def test_logits_for_the_host_and_blocks_for_the_disk(spec: GpuSpec, tmp_path: Path) -> None:
    engine = export_engine(spec, tmp_path)
    batch = make_batch([IDS], [0], [[2]], [6, 7])
    sampling = make_sampling(2, temperature=[0, 0.8], seeds=[1, 2], positions=[7, 8])
    with stand_in(engine) as session:
        expected = session.logits(batch)
        session.launch(batch)
        session.sample(sampling)
        sampled = session.wait()
        session.launch(batch)
        with pytest.raises(StepFailedError, match="in flight"):
            session.sample_logits(expected, sampling)
        session.sample(None)
        logits = session.wait().logits
        assert logits is not None
        np.testing.assert_array_equal(logits, expected)
        found = session.sample_logits(logits, sampling)
        np.testing.assert_array_equal(found.tokens, sampled.tokens)
        logits[:, 5] = 1e9
        assert session.sample_logits(logits, sampling).tokens.tolist() == [5, 5]
        block = session.read_block(2)
        assert len(block) == engine.manifest.kv.block_bytes
        session.write_block(7, block)
        assert session.read_block(7) == block != session.read_block(6)
        after = [make_batch([[8]], [8], [[number]]) for number in (2, 7)]
        np.testing.assert_array_equal(session.logits(after[1]), session.logits(after[0]))
        with pytest.raises(ValueError, match="not those of a KV block"):
            session.write_block(7, block[1:])
