"""`enginewright build`: a checkpoint becomes an engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from ..build_progress import BuildDisplay
from ..units import human_bytes, human_count, human_seconds
from .gpu_options import TARGETS, gpu_options, take_gpu_options

if TYPE_CHECKING:
    from ...builder.build import BuildReport
    from ...builder.estimate import BuildEstimate

_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended

FORMATS = click.Choice(["f32", "f16", "bf16", "int8", "fp8", "int4"])
KV_FORMATS = click.Choice(["f32", "f16", "bf16", "int8", "fp8"])


@click.command(name="build")
@click.argument("checkpoint")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="ENGINE")
@click.option("--name", help="The model's name for clients; the output's folder name by default.")
@click.option("--quant", "weights", type=FORMATS, help="Format of the weights; int8 by default.")
@click.option("--head-quant", "head_weights", type=FORMATS, help="Format of the output head.")
@click.option(
    "--kv-dtype",
    type=KV_FORMATS,
    help="Format of keys and values; follows --quant, on a GPU the type of activations.",
)
@click.option(
    "--task", type=click.Choice(["generate", "embed"]), help="What the engine is for; generate."
)
@click.option(
    "--pooling",
    type=click.Choice(["last", "mean"]),
    help="With --task embed: a text's vector is its last token's, or the mean of all.",
)
@click.option(
    "--group", type=int, help="Elements along k that share a scale: of int8, on a GPU of int4."
)
@click.option("--target", type=click.Choice(TARGETS), help="Device to compile for; cpu by default.")
@click.option("--isa", help="Instruction set of a CPU to compile for; this machine's by default.")
@gpu_options
@click.option("--max-batch-size", type=int, help="Sequences in a step.")
@click.option("--max-num-tokens", type=int, help="Tokens in a step.")
@click.option("--max-seq-len", type=int, help="Prompt and answer of one sequence, in tokens.")
@click.option(
    "--tactics",
    type=click.Choice(["fast", "full"]),
    help="Measure here how products and steps are best cut; a cost model chooses by default.",
)
@click.option("--cc", help="C compiler to use instead of the one that comes with the package.")
@click.option(
    "--dump-passes",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the printed network after every pass.",
)
@click.option("--dry-run", is_flag=True, help="Print the sizes to come, and build nothing.")
@click.option("--keep-going", is_flag=True, help="Keep an engine whose self-check failed.")
@click.option("--no-self-check", is_flag=True, help="Do not run the engine after the build.")
@click.option(
    "--no-cache", is_flag=True, help="Make all anew: take nothing that earlier builds have left."
)
@click.option("--overwrite", is_flag=True, help="Replace an engine that stands at the output.")
def command(
    checkpoint: str,
    output: Path,
    name: str | None,
    dump_passes: Path | None,
    dry_run: bool,
    keep_going: bool,
    no_self_check: bool,
    no_cache: bool,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Compile CHECKPOINT into an engine.

    CHECKPOINT is a Hugging Face folder, the name of a model on the Hugging Face hub, a GGUF file,
    or a TensorRT-LLM checkpoint.
    """
    gpu = take_gpu_options(settings)
    # Before numpy is imported: between products the threads of its library spin, on the cores that
    # unpacking the next weight needs. The self-check took twice as long with them on 2 cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ...builder.build import BuildOptions, build, user_cache
    from ...builder.config import BuildConfig
    from ...builder.config_tensorrt import TensorRTConfig
    from ...builder.estimate import estimate
    from ...builder.targets.base import get_target
    from ...converters import open_checkpoint
    from ...runtime.engine_writer import check_output

    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    given = {key: value for key, value in settings.items() if value is not None}
    config = BuildConfig(
        **given, self_check=not no_self_check, tensorrt=TensorRTConfig(**gpu) if gpu else None
    )
    cache = None if no_cache else user_cache()
    options = BuildOptions(name, overwrite, keep_going, dump_passes, cache)
    try:
        with _termination_as_interrupt():
            if not dry_run:
                check_output(output, overwrite)
            with open_checkpoint(checkpoint) as source:
                figures = estimate(source.config, source.tensors, config)
                needs = get_target(config.target).describe(config)
                if dry_run:
                    _print_estimate(console, figures, source.size_bytes, needs)
                    console.print("Nothing was built: leave out --dry-run to build it.")
                    return
                if config.for_gpu:  # compiling takes minutes; nobody shall find out by running out
                    _print_estimate(console, figures, source.size_bytes, needs)
                with BuildDisplay(console) as display:
                    report = build(source, config, output, display, options)
    except KeyboardInterrupt:
        console.print("build: stopped; nothing was left behind")
        click.get_current_context().exit(_INTERRUPTED)
    _print_report(console, report, output)


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind the build as Ctrl-C does, so that it too leaves nothing behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_estimate(
    console: Console, figures: BuildEstimate, checkpoint_bytes: int, needs: dict[str, Any]
) -> None:
    lines = {
        "target": needs["isa"],
        "parameters": human_count(figures.parameters),
        "checkpoint": human_bytes(checkpoint_bytes),
        "engine's weights": human_bytes(figures.weights),
        "KV cache, a token": human_bytes(figures.kv_per_token),
        "KV cache, one sequence": human_bytes(figures.kv_per_sequence),
        "KV cache, a full batch": human_bytes(figures.kv_full),
        "memory of the build": f"about {human_bytes(figures.build_peak)}",
    }
    if figures.workspace:
        lines["workspace of a step"] = f"about {human_bytes(figures.workspace)}"
        lines["memory of the device"] = (
            f"about {human_bytes(figures.weights + figures.workspace)}, and the KV cache"
        )
    for label, value in lines.items():
        console.print(f"  {label:<24} {value}")


def _print_report(console: Console, report: BuildReport, output: Path) -> None:
    manifest = report.manifest
    size = sum(file.bytes for file in manifest.files.values())
    console.print(
        f"Built {manifest.name} ({human_count(manifest.source.parameters)} parameters, "
        f"{manifest.quantization.weights}, {manifest.target.isa}) in "
        f"{human_seconds(sum(manifest.times.values()))}: {human_bytes(size)} at {report.folder}",
    )
    console.print(
        f"Peak memory {human_bytes(manifest.peak_memory_bytes)}, "
        f"checkpoint {human_bytes(manifest.source.bytes)}",
    )
    check = manifest.self_check
    if check is not None:
        console.print(
            f"Self-check against the f32 reference, {check.positions} tokens: "
            f"greedy agreement {check.greedy_agreement:.1%}, mean KL {check.mean_kl:.2g} nats "
            f"(limit {check.kl_limit:g}), logit error mean {check.mean_abs_error:.2g}, "
            f"max {check.max_abs_error:.2g}",
            soft_wrap=True,
        )
    for note in report.notes:
        console.print(f"Note: {note}")
    console.print(f"Next: enginewright serve {output}")
