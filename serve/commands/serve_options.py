"""The options of `enginewright serve` beyond the executor's, with ServeConfig's defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ..operation.config import LOG_FORMATS, LOG_LEVELS, ServeConfig
from ..operation.config_file import load_config
from .options import ByteSize, Command

_PATH = click.Path(path_type=Path)
_SECONDS = click.FloatRange(min=0)
_DEFAULTS = {field.name: field.default for field in fields(ServeConfig)}


def serve_options(command: Command) -> Command:
    """Add the options of the HTTP server; their values are the fields of ServeConfig."""
    decorators = (
        click.option(
            "--config",
            type=_PATH,
            is_eager=True,
            expose_value=False,
            callback=load_config,
            help="TOML file with options by their names; flags and environment go first.",
        ),
        _option("host", help="Address to listen on."),
        _option("port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one."),
        _option("served_model_name", help="The model's name for clients; the engine's by default."),
        _option("api_key", multiple=True, help="Key that clients must send; may be repeated."),
        _option("api_key_file", type=_PATH, help="Keys, one a line, with limits of their own."),
        _option("cors_origin", multiple=True, help="Site whose pages may call; may be repeated."),
        click.option("--cors-credentials", is_flag=True, help="Let those pages send credentials."),
        click.option("--strict", is_flag=True, help="Refuse requests with unknown fields."),
        _option("keep_alive", type=_SECONDS, help="Silence that a stream fills; 0 is never."),
        _option("max_body_size", type=ByteSize(), help="Largest body of a request."),
        _option("max_context", type=click.IntRange(min=2), help="Tokens of prompt and answer."),
        _option("drain_timeout", type=_SECONDS, help="Seconds to finish requests after SIGTERM."),
        _option("hang_timeout", type=_SECONDS, help="Silence after which /health answers 503."),
        _option("ssl_certfile", type=_PATH, help="Certificate chain (PEM); serves HTTPS."),
        _option("ssl_keyfile", type=_PATH, help="Its private key (PEM)."),
        click.option(
            "--dashboard/--no-dashboard", default=True, show_default=True, help="The page at /."
        ),
        _option("log_format", type=click.Choice(LOG_FORMATS), help="Logs on stderr."),
        _option("log_level", type=click.Choice(LOG_LEVELS), help="Least level that is logged."),
        _option("otlp_traces_endpoint", help="Where traces go (OTLP over HTTP); needs [otel]."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def take_serve_config(options: dict[str, Any]) -> ServeConfig:
    """Take the fields of ServeConfig out of a command's options."""
    return ServeConfig(**{name: options.pop(name) for name in _DEFAULTS})


def _option(name: str, **settings: Any) -> Callable[[Command], Command]:
    default = _DEFAULTS[name]
    if not settings.get("multiple"):
        settings["default"] = default
    shown = default is not None and not settings.get("multiple")
    return click.option(f"--{name.replace('_', '-')}", show_default=shown, **settings)
