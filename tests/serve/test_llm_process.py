"""The LLM class and processes: forks, programs that end, LLMs that are forgotten."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import wait_until
from .tiny_tokenizer import write_tokenizer

PROGRAM = Path(__file__).with_name("llm_in_process.py")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Where socket folders are made; empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="t"))
    yield folder
    folder.rmdir()


def run(way: str, engine: Path, sockets: Path) -> dict[str, Any]:
    write_tokenizer(engine / "tokenizer")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), way, str(engine)],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(sockets)},
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def is_gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_fork_gets_one_clear_error_and_ends_nothing(tmp_path: Path, sockets: Path) -> None:
    found = run("fork", tmp_path, sockets)
    tried = ("generate", "chat", "get_stats", "result", "iterate", "await", "abort")
    assert found["child"] == {
        **dict.fromkeys(tried, "ForkedProcessError"),
        "done": "none",
        "shutdown": "none",
    }
    assert (found["exit code"], found["length"], found["again"]) == (0, 400, [6, 7, 8])


def test_forks_that_end_leave_the_executor_alone(tmp_path: Path, sockets: Path) -> None:
    assert run("fork_and_exit", tmp_path, sockets) == {
        "exit codes": [7, 7, 7, 7],
        "again": [6, 7, 8],
    }


def test_a_fork_does_not_keep_the_executor_alive(tmp_path: Path, sockets: Path) -> None:
    found = run("leave_a_child", tmp_path, sockets)
    try:
        wait_until(lambda: is_gone(found["executor"]))
        assert not is_gone(found["child"])
    finally:
        os.kill(found["child"], signal.SIGKILL)
    for folder in sockets.iterdir():  # the parent ended without a chance to remove it
        for socket in folder.iterdir():
            socket.unlink()
        folder.rmdir()


def test_a_forgotten_llm_ends_when_its_requests_have(tmp_path: Path, sockets: Path) -> None:
    assert run("forget", tmp_path, sockets) == {"length": 400, "gone": True, "kept": 2}


def test_a_program_that_just_ends_leaves_nothing(tmp_path: Path, sockets: Path) -> None:
    found = run("exit_without_shutdown", tmp_path, sockets)
    wait_until(lambda: is_gone(found["executor"]))
