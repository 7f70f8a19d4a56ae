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

from tests.support.kernel_cases import all_cases, check

ROOT = Path(__file__).resolve().parents[2]
LACKS = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(LACKS),
    reason=f"needs {' and '.join(LACKS)}, 2 GB that no install brings by itself (docs/nvidia.md)",
)

NAMES = list(all_cases(lambda *arguments, **changes: None))


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    """All cases, run once in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_launch"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {case["case"]: case for case in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_kernel(cases: dict[str, dict[str, Any]], name: str) -> None:
    check(name, cases[name])
