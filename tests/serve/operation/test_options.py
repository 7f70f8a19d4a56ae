"""Where the options of `serve` come from: flag, environment, file, default, in that order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from enginewright.runtime.errors import InputError
from enginewright.serve.commands.serve import command
from enginewright.serve.commands.serve_options import take_serve_config
from enginewright.serve.operation.config import ServeConfig


def parse(*arguments: str) -> dict[str, Any]:
    return command.make_context("serve", ["engine", *arguments]).params


def test_defaults_are_those_of_the_config() -> None:
    assert take_serve_config(parse()) == ServeConfig()


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "file"\ndrain-timeout = 7\nmax_body_size = "1MiB"\n')
    monkeypatch.setenv("ENGINEWRIGHT_PORT", "2")
    monkeypatch.setenv("ENGINEWRIGHT_HOST", "environment")
    options = parse("--config", str(file), "--port", "3")
    assert options["port"] == 3  # flag
    assert options["host"] == "environment"
    assert options["drain_timeout"] == 7  # file
    assert options["max_body_size"] == 1 << 20
    assert options["hang_timeout"] == ServeConfig().hang_timeout  # default


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('api_key = ["a", "b"]\ndashboard = false\nmax_queue = 5\nthreads = 2\n')
    monkeypatch.setenv("ENGINEWRIGHT_CONFIG", str(file))
    options = parse()
    assert options["api_key"] == ("a", "b")
    assert options["dashboard"] is False
    assert (options["max_queue"], options["threads"]) == (5, 2)


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEWRIGHT_API_KEY", "a b")
    assert parse()["api_key"] == ("a", "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [("prot = 1", "prot"), ("port =", "is not TOML"), ("[port]\na = 1", "port")],
)
def test_wrong_files(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises((InputError, click.BadParameter)) as failure:
        parse("--config", str(file))
    error = failure.value
    assert words in (
        error.format_message() if isinstance(error, click.BadParameter) else str(error)
    )


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse("--config", str(tmp_path / "none.toml"))
