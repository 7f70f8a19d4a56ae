"""`enginewright check`: can this machine run an engine, and if not, what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from ...runtime import machine
from ...runtime.abi_cpu import ABI_VERSION
from ...runtime.artifact import open_engine
from ...runtime.cuda import probe
from ...runtime.cuda_contract import CONTRACT_VERSION
from ...runtime.errors import EngineVersionError, IncompatibleMachineError
from ...runtime.gpu_check import differences
from ...runtime.manifest import TensorRTFacts


@click.command(name="check")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Compare the hash of every byte, also of the weights.")
def command(engine: Path, full: bool) -> None:
    """Say whether this machine can run ENGINE; the exit code tells why not.

    5: damaged or not an engine, 6: of another version, 7: the machine lacks something.
    """
    manifest = open_engine(engine, verify="full" if full else "fast").manifest
    gpu = manifest.target.tensorrt
    spoken = ABI_VERSION if gpu is None else CONTRACT_VERSION
    if manifest.target.abi != spoken:
        raise EngineVersionError(
            f"{engine} has ABI {manifest.target.abi} and this enginewright speaks {spoken}; "
            "build the engine again"
        )
    if gpu is not None:
        _check_gpu(engine, gpu)
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
    if gpu is not None:
        device = probe().devices[0]
        click.echo(f"device: {device.name}, compute capability {device.compute_capability}")
    click.echo(f"machine: {here.model_name}, {here.cores} cores, has {wants}")
    click.echo(f"{engine} can run on this machine.")


def _check_gpu(engine: Path, facts: TensorRTFacts) -> None:
    """Raise IncompatibleMachineError with everything that differs, and what to do about each."""
    lacks = differences(facts, probe())
    if lacks:
        raise IncompatibleMachineError(f"{engine} cannot run here: it needs {', and '.join(lacks)}")
