"""`enginewright bench`: an engine alone, or a server under load."""

from __future__ import annotations

import click

from .bench_engine import engine
from .bench_serve import serve


@click.group(name="bench")
def command() -> None:
    """Measure an engine, or a server."""


command.add_command(engine)
command.add_command(serve)
