"""The Triton kernels in Triton's interpreter, against numpy; no GPU takes part."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LACKS = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(LACKS),
    reason=f"needs {' and '.join(LACKS)}, 2 GB that no install brings by itself (docs/nvidia.md)",
)

ATTENTION = {
    "f32": 1e-6,
    "f16": 2e-3,
    "bf16": 0.02,
    "f16-fp8": 2e-3,
    "f16-int8": 4e-3,
    "bf16-fp8": 0.02,
    "bf16-int8": 0.03,
    "window": 2e-3,
    "softcap": 2e-3,
    "sinks": 2e-3,
    "heads-of-three": 1e-6,
    "one-head": 1e-6,
    "all-of-it": 1e-6,
}
"""Largest errors against f64; in f16 and bf16 probabilities and outputs are rounded to them."""

NORM = {"f32": 1e-6, "f16": 4e-3, "bf16": 0.05}
SAMPLING = ("greedy", "plain", "top-k", "top-p", "min-p", "filters", "penalties", "bias", "mask")
TIED = ("top-k", "top-p", "min-p", "filters")


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    """All cases, run once in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_cases"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {case["case"]: case for case in map(json.loads, done.stdout.splitlines())}
    assert not [case for case in found.values() if "failed" in case]
    return found


@pytest.mark.parametrize("kernel", ["context", "split"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(cases: dict[str, dict[str, Any]], kernel: str, name: str) -> None:
    assert cases[f"attention-{kernel}-{name}"]["error"] <= ATTENTION[name]


def test_a_sequence_has_the_same_bits_in_any_company(cases: dict[str, dict[str, Any]]) -> None:
    assert cases["attention-company"]["same"] is True


@pytest.mark.parametrize("kind", ["", "-rope", "-plugin"])
@pytest.mark.parametrize("cache", ["f32", "f16", "bf16", "fp8", "int8"])
def test_kv_write(cases: dict[str, dict[str, Any]], cache: str, kind: str) -> None:
    assert cases[f"kv_write-{cache}{kind}"]["wrong"] == 0


@pytest.mark.parametrize("cache", ["f32", "f16", "fp8", "int8"])
def test_kv_store(cases: dict[str, dict[str, Any]], cache: str) -> None:
    assert cases[f"kv_store-{cache}"]["wrong"] == 0


@pytest.mark.parametrize("residual", ["", "-residual"])
@pytest.mark.parametrize("rounded", ["", "-int8"])
@pytest.mark.parametrize("compute", NORM)
def test_norm(cases: dict[str, dict[str, Any]], compute: str, rounded: str, residual: str) -> None:
    case = cases[f"norm-{compute}{rounded}{residual}"]
    assert case["wrong"] == 0
    assert case["error"] <= (1e-6 if rounded else NORM[compute])
    assert case.get("steps", 0) == 0


@pytest.mark.parametrize("name", [*SAMPLING, *(f"{name}-ties" for name in TIED)])
def test_sampling(cases: dict[str, dict[str, Any]], name: str) -> None:
    case = cases[f"sample-{name}"]
    assert (case["refused"], case["wrong"], case["rows"]) == (0, 0, 6)
    assert case["error"] <= 1e-5


def test_logits_that_are_no_numbers(cases: dict[str, dict[str, Any]]) -> None:
    assert cases["sample-broken-logits"]["wrong"] == 0


def test_draws_are_those_of_the_cpu(cases: dict[str, dict[str, Any]]) -> None:
    assert cases["sample-philox"]["wrong"] == 0


def test_no_case_is_left_out(cases: dict[str, dict[str, Any]]) -> None:
    expected = 2 * len(ATTENTION) + 1 + 15 + 4 + 12 + len(SAMPLING) + len(TIED) + 2
    assert len(cases) == expected
