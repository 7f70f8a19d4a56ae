"""The native code with checks of undefined behaviour: this folder's other tests run again.

A check that fails ends the process, and with it the run. Slow, so by hand and at night:
`.venv/bin/python -m pytest -m slow tests/conformance/test_sanitizers.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = "-fsanitize=undefined -fsanitize-trap=undefined"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernels", "attention", "sampling", "models", "bits"])
def test_no_undefined_behaviour(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / f"test_cpu_{name}.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env={**os.environ, "ENGINEWRIGHT_TEST_CFLAGS": CHECKS},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
