"""A compiled plan on the device, against the reference: the first step, which needs no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from enginewright.builder.targets.tensorrt.compile import compile_plan
from enginewright.builder.targets.tensorrt.library import load_library
from enginewright.runtime.cuda import CudaDevice
from enginewright.runtime.session_tensorrt import TensorRTSession
from enginewright.runtime.tensorrt_plan import TensorRTPlan
from tests.support.cpu_engine import make_batch
from tests.support.gpu_engine import GpuSpec, export_engine, model_of
from tests.support.tiny import FAMILIES


class NoKernels(CudaDevice):
    """A device whose kernels are left out: pages stay empty, which a first step does not mind."""

    def launch(
        self, kernel: str, variant: str, grid: tuple[int, int], arguments: Sequence[int]
    ) -> None:
        """Do nothing."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt(family: str, capability: str, tmp_path: Path) -> None:
    spec = GpuSpec(family, weights="f16", compute_dtype="f16")
    engine = export_engine(spec, tmp_path / "engine")
    facts = engine.manifest.target.tensorrt
    assert facts is not None
    plan = tmp_path / "plan"
    compile_plan(
        load_library("tensorrt-rtx"), model_of(engine.folder), facts.profiles, spec.build, plan
    )
    device = NoKernels(tmp_path, ())
    rtx = TensorRTPlan(plan, plan, replace(facts, library="tensorrt-rtx"), int(device.stream))
    session = TensorRTSession(engine, device, rtx, kv_cache_memory=1 << 24)
    batch = make_batch([np.arange(20), np.arange(5)], [0, 0], [[0], [1]], [4, 19, 24])
    found, wanted = session.logits(batch), spec.reference().step(batch)
    session.close()
    assert np.abs(found - wanted).max() < 0.1
