"""SIGTERM under load: what clients and probes see of the whole command."""

from __future__ import annotations

import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import wait_until
from tests.serve.tiny_tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[3]
BODY = {"prompt": "Hi", "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("engine")
    write_tokenizer(folder / "tokenizer")
    return str(folder)


@contextmanager
def serving(engine: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `enginewright serve` over a fake executor; `--threads N` makes a step take 2 N ms."""
    command = [sys.executable, "-m", "tests.serve.fake_cli", "serve", engine, "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        found = re.search(r"https?://127\.0\.0\.1:([0-9]+)", process.stdout.readline())
        assert found, process.communicate()
        yield process, int(found.group(1))
    finally:
        process.kill()
        process.communicate()


def start_stream(port: int, max_tokens: int) -> tuple[http.client.HTTPConnection, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    connection.request("POST", "/v1/completions", json.dumps(BODY | {"max_tokens": max_tokens}))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    return connection, response


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_sigterm_under_load(engine: str) -> None:
    """What runs ends well; new work and /health/ready get 503, /health 200; it exits with 0."""
    with serving(engine, "--threads", "10", "--log-format", "json", "--drain-timeout", "300") as (
        process,
        port,
    ):
        running = [start_stream(port, 200) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: get(port, "/health/ready") == 503)
        assert get(port, "/health") == 200
        late = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        late.request("POST", "/v1/completions", json.dumps(BODY))
        answer = late.getresponse()
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert json.loads(answer.read())["error"]["code"] == "server_stopping"
        late.close()
        for connection, response in running:
            assert response.read().endswith(b"data: [DONE]\n\n")
            connection.close()
        output, errors = process.communicate(timeout=90)
        assert (process.returncode, output) == (0, "")
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["status"] for line in lines if line["message"] == "request"].count(200) == 3
    assert any("draining 3 requests" in line["message"] for line in lines)


def test_the_drain_is_bounded(engine: str) -> None:
    """What does not end in time ends with an error event that says why."""
    with serving(engine, "--threads", "50", "--drain-timeout", "0.3") as (process, port):
        connection, response = start_stream(port, 1000)
        process.send_signal(signal.SIGTERM)
        text = response.read()
        assert b"server_stopping" in text
        assert text.endswith(b"data: [DONE]\n\n")
        connection.close()
        process.communicate(timeout=90)
        assert process.returncode == 0


def test_a_second_signal_does_not_wait(engine: str) -> None:
    with serving(engine, "--threads", "500") as (process, port):
        connection, response = start_stream(port, 1000)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: get(port, "/health/ready") == 503)
        process.send_signal(signal.SIGTERM)
        assert b"server_stopping" in response.read()
        connection.close()
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0
        assert "Traceback" not in errors


def test_https(engine: str, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("the openssl command is not installed")
    options = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with serving(engine, *options) as (_, port):
        context = ssl.create_default_context(cafile=str(certificate))
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=90)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_key_file_and_a_config_file(engine: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret name=me\n")
    config = tmp_path / "serve.toml"
    config.write_text(f'api_key_file = "{tmp_path / "keys"}"\nlog_format = "json"\n')
    with serving(engine, "--config", str(config)) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        body = json.dumps({"prompt": "Hi", "max_tokens": 2})
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().status == 401
        connection.close()
        connection.request("POST", "/v1/completions", body, {"authorization": "Bearer secret"})
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
    refused, answered = (json.loads(line) for line in errors.splitlines())
    assert (refused["status"], "key" in refused) == (401, False)
    assert (answered["status"], answered["key"]) == (200, "me")
