"""Options from a TOML file: the defaults of a command, behind flags and environment."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from ...runtime.errors import InputError

ENVIRONMENT_PREFIX = "ENGINEWRIGHT"


def load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make a file's values the defaults of the command; an option's eager callback.

    Raises InputError for a file that cannot be read and for keys that are no options.
    """
    if path is not None:
        ctx.default_map = {**_read(path, ctx.command), **(ctx.default_map or {})}
    return path


def _read(path: Path, command: click.Command) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {path} is not TOML: {error}") from error
    known = {parameter.name for parameter in command.params if parameter.name} - {"config"}
    found = {name.replace("-", "_"): value for name, value in values.items()}
    unknown = sorted(found.keys() - known)
    if unknown:
        raise InputError(
            f"the configuration {path} sets {', '.join(unknown)}, which `{command.name}` does not "
            f"know; it knows {', '.join(sorted(known))}"
        )
    many = {parameter.name for parameter in command.params if parameter.multiple}
    return {name: _plain(path, name, value, name in many) for name, value in found.items()}


def _plain(path: Path, name: str, value: Any, many: bool) -> str | list[str]:
    """Return a value as a command line would have it, so that it is checked in the same way."""
    if many and isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, dict | list):
        raise InputError(f"the configuration {path} sets {name} to {value}; give one plain value")
    return str(value)
