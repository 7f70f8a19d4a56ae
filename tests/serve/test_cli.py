"""The command line: help, one sentence an error, exit codes, and an orderly end of `serve`."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from enginewright.serve.cli import COMMANDS
from enginewright.serve.commands.options import ByteSize

from .conftest import ANSWER
from .tiny_tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
ENGINE_OPTIONS = {"--threads", "--kv-cache-memory", "--max-batch-size", "--max-num-tokens"}


def run(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.serve.fake_cli", *arguments]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("engine")
    write_tokenizer(folder / "tokenizer")
    return str(folder)


@contextmanager
def serving(engine: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    command = [sys.executable, "-m", "tests.serve.fake_cli", "serve", engine, "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)", greeting)
        assert found, process.communicate()
        yield process, int(found.group(1)), greeting
    finally:
        process.kill()
        process.communicate()


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name, text in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert text in done.stdout


def test_help_is_light() -> None:
    program = (
        "import sys\nfrom enginewright.serve.cli import main\n"
        "try: main(['--help'])\nfinally: print([m for m in ('numpy', 'tokenizers', 'starlette', "
        "'jinja2', 'rich', 'uvicorn', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["generate", "chat", "serve"])
def test_help_of_a_command(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert all(option in done.stdout for option in ENGINE_OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nonsense",), 2, "No such command"),
        (("generate", "x"), 2, "Missing option"),
        (("serve", "x", "--port", "99999"), 2, "--port"),
        (("serve", "x", "--kv-cache-memory", "much"), 2, "is not a size"),
        (("serve", "/nonexistent"), 5, "not an engine folder"),
        (("chat", "/nonexistent", "-m", "Hi"), 5, "not an engine folder"),
        (("generate", "x", "-p", "Hi", "--temperature", "-1"), 2, "temperature"),
    ],
)
def test_errors_are_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_traceback_on_request() -> None:
    assert "Traceback" in run("--traceback", "serve", "/nonexistent").stderr


def test_generate(engine: str) -> None:
    done = run("generate", engine, "-p", "A: ", "-p", "B: ", "--stats", "--seed", "1")
    assert done.stdout == f"A: {ANSWER}\n\nB: {ANSWER}\n"
    assert re.search(r"answer [0-9]+ tokens in .*tokens/s", done.stderr)


def test_chat_with_one_message(engine: str) -> None:
    done = run("chat", engine, "-m", "Hi", "--system", "Be kind.", "--stats")
    assert (done.returncode, done.stdout) == (0, ANSWER + "\n")
    assert "tokens/s" in done.stderr


def test_chat_in_turns(engine: str) -> None:
    done = run("chat", engine, typed="Hi\n\n/reset\nHi\n/exit\nnever\n")
    assert done.returncode == 0
    assert done.stdout.count(ANSWER) == 2
    assert run("chat", engine, typed="Hi\n").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_with_0_on_a_signal(engine: str, number: int) -> None:
    with serving(engine, "--served-model-name", "mine") as (process, port, greeting):
        assert "serving mine" in greeting
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "mine"
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "", "")
        connection.close()


def test_serve_drains_what_runs(engine: str) -> None:
    with serving(engine, "--threads", "5") as (process, port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        body = json.dumps({"prompt": "Hi", "max_tokens": 64, "stream": True})
        connection.request("POST", "/v1/completions", body)
        response = connection.getresponse()
        response.readline()
        process.send_signal(signal.SIGTERM)
        assert response.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_taken_port_is_told(engine: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", engine, "--port", str(port))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert str(port) in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5k", 1500), ("64 MiB", 64 << 20), ("7", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert ByteSize().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1i", "0x10"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        ByteSize().convert(text, None, None)
