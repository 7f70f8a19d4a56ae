"""The native code under checks: undefined behaviour, addresses, and what was never written.

A check that fails ends the process, and with it the run. Slow, so by hand and at night:
`.venv/bin/python -m pytest -m slow tests/conformance/test_sanitizers.py`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from enginewright.builder.progress import Progress
from enginewright.builder.targets.cpu.target import CpuTarget
from enginewright.runtime import machine
from tests.support.cpu_engine import Spec
from tests.support.cpu_kernels import SOURCES
from tests.support.sanitized import (
    LEVEL,
    UNDEFINED,
    checked_environment,
    write_compiler,
    write_tiny_model,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADERS = ROOT / "plugins/cpu"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")

# Those of the end-to-end tests that ask nothing of a model's answers.
END_TO_END = (
    "executor_bits",
    "kv_disk",
    "one_result",
    "api_fuzz",
    "api_beams",
    "api_anthropic",
    "openai_client",
)

pytestmark = pytest.mark.slow
needs_level = pytest.mark.skipif(
    LEVEL not in machine.detect().features, reason=f"this machine lacks {LEVEL}"
)


def run(command: list[str], seconds: int, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.parametrize("name", ["kernels", "attention", "sampling", "models", "bits"])
def test_no_undefined_behaviour(name: str) -> None:
    """This folder's other tests run again, at every level of this machine."""
    command = [*PYTEST, str(HERE / f"test_cpu_{name}.py")]
    run(command, 3600, {"ENGINEWRIGHT_TEST_CFLAGS": UNDEFINED})


@needs_level
@pytest.mark.parametrize("kind", ["undefined", "address"])
def test_the_end_to_end_suite_over_a_checked_engine(kind: str, tmp_path: Path) -> None:
    """Built by the product's own command, from a tiny model with the real one's tokenizer."""
    environment = checked_environment(kind)
    if environment is None:
        pytest.skip("gcc and its libasan are not installed")
    tokenizer = ROOT / ".cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not tokenizer.exists():
        pytest.skip("scripts/model has not fetched the model whose tokenizer is used")
    environment |= {
        "ENGINEWRIGHT_TEST_CHECKPOINT": str(write_tiny_model(tmp_path / "tiny.gguf", tokenizer)),
        "ENGINEWRIGHT_TEST_BUILD": f"--isa {LEVEL} --cc {write_compiler(kind, tmp_path)}",
    }
    files = [str(ROOT / f"tests/e2e/test_{name}.py") for name in END_TO_END]
    run([*PYTEST, *files], 1800, environment)


@needs_level
@pytest.mark.parametrize(
    ("family", "weights"),
    [("llama", "int8"), ("qwen2", "f32"), ("mistral", "int4"), ("qwen3", "bf16")],
)
def test_valgrind_finds_nothing(family: str, weights: str, tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    compiler = write_compiler("valgrind", tmp_path)
    spec = Spec(family, weights, isa=LEVEL)
    build = dataclasses.replace(spec.build, cc=str(compiler))
    CpuTarget().compile(spec.network(), build, tmp_path, Progress())
    program, weights_file = tmp_path / "drive", tmp_path / "rank0.weights"
    command = [str(compiler), "-std=gnu11", f"-I{HEADERS}", str(SOURCES / "drive.c")]
    run([*command, "-o", str(program), "-ldl"], 300, {})
    facts = [str(weights_file.stat().st_size), str(spec.model.vocab_size)]
    command = [str(program), str(tmp_path / "rank0.engine"), str(weights_file), *facts]
    tokens = {
        subprocess.run([*command, fill], capture_output=True, check=True).stdout
        for fill in ("0", "255")
    }
    assert len(tokens) == 1, "the answer depends on KV slots that were never written"
    checks = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9", "--fair-sched=yes"]
    run([*checks, *command, "255"], 900, {})


@needs_level
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("undefined", "i << 40 * i"),
        ("address", "p[i + 15]"),
        ("valgrind", "p[i] > 3 ? 77 : 1"),
    ],
)
def test_each_check_finds_what_it_is_for(kind: str, fault: str, tmp_path: Path) -> None:
    environment = checked_environment(kind)
    checks = ["valgrind", "-q", "--error-exitcode=9"] if kind == "valgrind" else []
    if environment is None or (checks and shutil.which("valgrind") is None):
        pytest.skip(f"what checks for {kind} faults is not installed")
    source, program = tmp_path / "wrong.c", tmp_path / "wrong"
    source.write_text(
        "#include <stdlib.h>\n"
        "int wrong(volatile int *p, int i) "
        f"{{ return {fault}; }}\n"
        "int main(int count, char **texts) "
        "{ return count > 2 && wrong(malloc(64), atoi(texts[1])) == 77; }\n"
    )
    run([str(write_compiler(kind, tmp_path)), str(source), "-o", str(program)], 300, {})
    run([*checks, str(program), "1"], 60, environment)
    with pytest.raises(AssertionError):
        run([*checks, str(program), "1", "go"], 60, environment)
