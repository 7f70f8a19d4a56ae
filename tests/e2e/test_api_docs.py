"""The examples of docs/api.md run against the real server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Served

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```(sh|python)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def served(served_on_cpu: Served) -> Served:
    """The examples are written for a model that has learned something."""
    return served_on_cpu


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(served: Served, number: int) -> None:
    language, code = EXAMPLES[number]
    code = code.replace("http://localhost:8000", served.url)
    if language == "sh" and shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "internal_error" not in done.stdout
