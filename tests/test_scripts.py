"""Scripts are sound shell, and continuous integration runs two of them and nothing else."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [
    path
    for path in (*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run")
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.access(path, os.X_OK), "scripts are executable"
    assert "set -euo pipefail" in path.read_text(), "a failing step fails the script"


def test_the_scripts_are_there() -> None:
    assert {"setup", "model", "demo", "test", "check", "run"} <= {path.name for path in SCRIPTS}


def test_ci_runs_the_two_scripts_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["scripts/check", "scripts/test"]


UNPINNED = {
    "enginewright",  # an extra that takes in another of our own
    "tensorrt-cu13",  # fetches its library from NVIDIA's own index: nothing here installs it
}


def test_every_dependency_is_pinned() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    for requirement in wanted:
        name = re.split(r"[\[<>=;~! ]", requirement)[0].lower().replace("_", "-")
        if name in UNPINNED:
            continue
        assert name in pinned, f"{name} is missing from constraints.txt"
