"""`enginewright inspect`: what an engine says about itself."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.pretty import Pretty
from rich.table import Table

from ...runtime.artifact import open_engine, read_manifest
from ...runtime.manifest import Manifest, encode_manifest
from ...runtime.tactics_cpu import BUCKETS, CpuTactics
from ..units import human_bytes, human_count, human_seconds

_PIPE_WIDTH = 200  # characters; a pipe has no width of its own


@click.command(name="inspect")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
@click.option("--tensors", is_flag=True, help="List every tensor too.")
@click.option("--tactics", is_flag=True, help="Show how products and steps are cut too.")
def command(engine: Path, as_json: bool, tensors: bool, tactics: bool) -> None:
    """Print what ENGINE is: its model, its target, its limits and how accurate it is."""
    manifest = read_manifest(engine)
    if as_json:
        click.echo(encode_manifest(manifest), nl=False)
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(_summary(manifest))
    console.print(_files(manifest))
    if tensors:
        console.print(_tensors(manifest))
    if tactics:
        _print_tactics(console, manifest)
    open_engine(engine)  # a damaged engine is described first and refused then


def _summary(manifest: Manifest) -> Table:
    model, target, kv = manifest.model, manifest.target, manifest.kv
    limits, formats = manifest.limits, manifest.quantization
    rows = {
        "name": manifest.name,
        "built": f"{manifest.created} by {manifest.producer.name} {manifest.producer.version}, "
        f"schema {manifest.schema_version}",
        "from": f"{manifest.source.name} ({human_count(manifest.source.parameters)} parameters, "
        f"{human_bytes(manifest.source.bytes)})",
        "model": f"{model.get('family', '?')}, {model.get('num_layers', '?')} layers, "
        f"hidden size {model.get('hidden_size', '?')}, vocabulary {manifest.vocab_size}",
        "task": f"embeds texts, pooling: {manifest.pooling}" if manifest.embeds else "writes text",
        "formats": f"weights {formats.weights}, head {formats.head}, "
        f"activations {formats.activations}, KV {formats.kv}",
        "target": f"{target.name}, {target.isa}, ABI {target.abi}",
        "needs": _needs(manifest),
        "limits": f"{limits.max_batch_size} sequences and {limits.max_num_tokens} tokens a step, "
        f"{limits.max_seq_len} tokens a sequence",
        "KV": f"{kv.num_layers} layers, blocks of {kv.block_tokens} tokens, "
        f"{human_bytes(kv.block_bytes)} each",
        "self-check": _self_check(manifest),
        "build": f"{human_seconds(sum(manifest.times.values()))}, "
        f"peak memory {human_bytes(manifest.peak_memory_bytes)}",
        "phases": ", ".join(
            f"{name} {human_seconds(seconds)}" for name, seconds in manifest.times.items()
        ),
    }
    table = Table(show_header=False, box=None)
    for label, value in rows.items():
        table.add_row(label, escape(value))
    return table


def _needs(manifest: Manifest) -> str:
    needs, gpu = manifest.target.needs, manifest.target.tensorrt
    parts = [needs.os, needs.machine, *needs.features]
    if gpu is not None:
        parts += [
            f"{gpu.library} {gpu.version}{' or later' if gpu.version_compatible else ''}",
            f"CUDA {gpu.cuda}",
            f"compute capability {' or '.join(gpu.compute_capabilities) or 'of the build machine'}"
            f"{' or later' if gpu.newer_devices else ''}",
            f"about {human_bytes(gpu.workspace_bytes)} of device memory for a step",
        ]
    return ", ".join(parts)


def _self_check(manifest: Manifest) -> str:
    figures = manifest.self_check
    if figures is None:
        return "not run"
    verdict = "passed" if figures.passed else "FAILED"
    return (
        f"{verdict}: mean KL {figures.mean_kl:.2g} nats (limit {figures.kl_limit:g}), greedy "
        f"agreement {figures.greedy_agreement:.1%} of {figures.positions} tokens, "
        f"logit error mean {figures.mean_abs_error:.2g}, max {figures.max_abs_error:.2g}"
    )


def _files(manifest: Manifest) -> Table:
    table = Table("file", "size", "sha256", box=None)
    for name, facts in manifest.files.items():
        table.add_row(escape(name), human_bytes(facts.bytes), f"{facts.sha256[:16]}...")
    return table


def _print_tactics(console: Console, manifest: Manifest) -> None:
    """Print a CPU engine's tactics as a table; another target's own report as it is."""
    if manifest.target.tensorrt is not None:
        console.print(Pretty(manifest.tactics))
        return
    tactics = msgspec.convert(manifest.tactics, CpuTactics)
    console.print(
        f"Tactics by {escape(tactics.chosen_by)}: tiles of {tactics.tile_rows} tokens, columns "
        f"below {tactics.column_rows} tokens a thread, row ops done by every thread up to "
        f"{tactics.redundant_rows} rows.\nRows that are multiplied at once, by rows of the step; "
        "p: the panel is prefetched; where it was measured, microseconds of one call."
    )
    columns = ["product", *(f"to {most}" for most in BUCKETS), "more"]
    table = Table(*columns, box=None)
    for product in tactics.products:
        cells: list[str] = []
        for index, rows in enumerate(product.block_rows):
            took = f" {product.microseconds[index]:.0f}" if product.microseconds else ""
            cells.append(f"{rows}{'p' if product.prefetch[index] else ''}{took}")
        table.add_row(escape(product.name), *cells)
    console.print(table)


def _tensors(manifest: Manifest) -> Table:
    table = Table("tensor", "shape", "format", "offset", "size", box=None)
    for tensor in manifest.tensors:
        shape = " x ".join(str(size) for size in tensor.shape)
        table.add_row(
            escape(tensor.name),
            shape,
            escape(tensor.format),
            str(tensor.offset),
            human_bytes(tensor.bytes),
        )
    return table
