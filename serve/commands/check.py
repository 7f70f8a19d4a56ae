"""`enginewright check`: can this machine run an engine, and if not, what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from ...runtime import machine
from ...runtime.abi_cpu import ABI_VERSION
from ...runtime.artifact import open_engine
from ...runtime.errors import EngineVersionError, IncompatibleMachineError


@click.command(name="check")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Compare the hash of every byte, also of the weights.")
def command(engine: Path, full: bool) -> None:
    """Say whether this machine can run ENGINE; the exit code tells why not.

    5: damaged or not an engine, 6: of another version, 7: the machine lacks something.
    """
    manifest = open_engine(engine, verify="full" if full else "fast").manifest
    if manifest.target.abi != ABI_VERSION:
        raise EngineVersionError(
            f"{engine} has ABI {manifest.target.abi} and this enginewright speaks {ABI_VERSION}; "
            "build the engine again"
        )
    needs = manifest.target.needs
    missing = machine.missing(needs)
    if missing:
        raise IncompatibleMachineError(
            f"{engine} cannot run here: it needs {', '.join(missing)}; "
            "build it again with --isa for this machine"
        )
    bytes_checked = "every byte" if full else "sizes and small files"
    wants = ", ".join((needs.os, needs.machine, *needs.features))
    click.echo(f"files: whole ({bytes_checked} compared with the manifest)")
    click.echo(f"version: schema {manifest.schema_version}, ABI {manifest.target.abi}")
    here = machine.detect()
    click.echo(f"machine: {here.model_name}, {here.cores} cores, has {wants}")
    click.echo(f"{engine} can run on this machine.")
