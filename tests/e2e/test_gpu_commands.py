"""The commands of the product with an engine for GPUs, on a machine whose GPU is the host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gpu_machine import search_path

TEXT = Path(__file__).parent / "texts" / "kl_text.txt"
BENCH = ("bench", "engine", "-p", "16", "-n", "4", "-r", "1")


def run(engine: Path, *words: str, has_gpu: bool = True, typed: str = "") -> tuple[int, str]:
    """Return a command's exit code and all that it printed."""
    path = {"PYTHONPATH": search_path()} if has_gpu else {}
    done = subprocess.run(
        [sys.executable, "-m", "enginewright", *(w.replace("ENGINE", str(engine)) for w in words)],
        env={**os.environ, **path},
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "ENGINE"), r"device: host, compute capability 8\.9\n(?s:.*)can run on this"),
        (("inspect", "ENGINE"), "sample-8.9.cubin"),
        (("generate", "ENGINE", "-p", "Hello", "--max-tokens", "3"), r"\w"),
        (("chat", "ENGINE", "--max-tokens", "3"), r"> .*\w"),
        (("eval", "perplexity", "ENGINE", str(TEXT)), r"perplexity \d+"),
        ((*BENCH, "ENGINE"), "tokens/s|t/s"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_command(gpu_engine: Path, words: tuple[str, ...], says: str) -> None:
    code, printed = run(gpu_engine, *words, typed="Hi\n" if words[0] == "chat" else "")
    assert code == 0, printed
    assert re.search(says, printed), printed


def test_figures_of_a_benchmark(gpu_engine: Path) -> None:
    code, printed = run(gpu_engine, *BENCH, "ENGINE", "--json")
    assert code == 0, printed
    figures = json.loads(printed)
    assert (figures["isa"], figures["threads"], len(figures["results"])) == ("sm_89", None, 2)


def test_what_a_gpu_engine_does_not_keep(gpu_engine: Path) -> None:
    code, printed = run(gpu_engine, *BENCH, "ENGINE", "--profile")
    assert code == 2, printed
    assert "keeps no profile of its own; leave --profile out" in printed


@pytest.mark.parametrize("words", [("check", "ENGINE"), ("serve", "ENGINE", "--port", "0")])
def test_no_gpu(gpu_engine: Path, words: tuple[str, ...]) -> None:
    code, printed = run(gpu_engine, *words, has_gpu=False)
    assert code == 7, printed
    assert "it needs an NVIDIA GPU" in printed
