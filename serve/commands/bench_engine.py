"""`enginewright bench engine`: tokens a second of an engine alone, like llama-bench."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...runtime.errors import InputError
from .options import IntList, engine_options

if TYPE_CHECKING:
    from ...runtime.manifest import Manifest
    from ...runtime.session import SessionLimits
    from ..bench.engine import EngineCase, EngineResult


@click.command()
@engine_options
@click.option(
    "-p", "--prompt-tokens", type=IntList(), default="512", show_default=True, help="0 is none."
)
@click.option(
    "-n", "--generate-tokens", type=IntList(), default="64", show_default=True, help="0 is none."
)
@click.option(
    "-d", "--depth", type=IntList(), default="0", show_default=True, help="Tokens before."
)
@click.option(
    "-b", "--batch", type=IntList(), default="1", show_default=True, help="Sequences at once."
)
@click.option("-r", "--repetitions", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--profile", is_flag=True, help="Print where the time went, kernel by kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def engine(
    engine: Path,
    prompt_tokens: list[int],
    generate_tokens: list[int],
    depth: list[int],
    batch: list[int],
    repetitions: int,
    profile: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure prefill and decode of ENGINE; lists are written like 1,8,32."""
    from ...runtime.artifact import open_engine
    from ...runtime.session import open_session
    from ..bench.engine import DECODE, PREFILL, EngineBench, EngineCase

    cases = [
        EngineCase(kind, tokens, start, width)
        for kind, sizes in ((PREFILL, prompt_tokens), (DECODE, generate_tokens))
        for tokens, start, width in itertools.product(filter(None, sizes), depth, batch)
    ]
    opened = open_engine(engine)
    opened.manifest.check_generates()
    for_gpus = opened.manifest.target.tensorrt is not None
    if profile and for_gpus:
        raise InputError(
            "an engine for GPUs keeps no profile of its own; leave --profile out, or run this "
            "command under NVIDIA's Nsight Systems: nsys profile enginewright bench engine"
        )
    session: Any = open_session(opened, **options)
    try:
        for case in cases:
            _check(case, session.limits)
        bench = EngineBench(session)
        reports = []
        for case in cases:
            result = bench.run(case, repetitions, _switch(session) if profile else None)
            reports.append(result.to_json())
            if not as_json:
                _print(result, first=case is cases[0])
            if profile:
                reports[-1]["kernels"] = _profile(session, opened.manifest, result, as_json)
    finally:
        session.close()
    if as_json:
        facts = opened.manifest
        head = {
            "engine": facts.name,
            "weights": facts.quantization.weights,
            "kv": facts.kv.dtype,
            "isa": facts.target.isa,
            "threads": None if for_gpus else session.threads,
            "results": reports,
        }
        click.echo(json.dumps(head, indent=2))


def _check(case: EngineCase, limits: SessionLimits) -> None:
    if case.depth + case.tokens > limits.max_seq_len:
        raise InputError(
            f"{case.name} needs {case.depth + case.tokens} tokens a sequence, but the engine takes "
            f"{limits.max_seq_len}"
        )
    if case.batch > min(limits.max_batch_size, limits.max_num_tokens):
        raise InputError(
            f"--batch {case.batch} is more than the {limits.max_batch_size} sequences of a step"
        )
    needed = case.blocks(limits.block_tokens)
    if needed > limits.num_blocks:
        raise InputError(
            f"{case.name} with --batch {case.batch} needs {needed} KV blocks and there are "
            f"{limits.num_blocks}; raise --kv-cache-memory or ask for less"
        )


def _switch(session: Any) -> Any:
    def switch(on: bool) -> None:
        session.profile(on)
        if on:
            session.read_profile()  # starts anew

    return switch


def _print(result: EngineResult, first: bool) -> None:
    if first:
        click.echo(f"{'test':<16} {'batch':>5} {'tokens/s':>18} {'ms a step':>10}")
    figures = result.to_json()
    rate = f"{figures['avg_ts']:.1f} ± {figures['stddev_ts']:.1f}"
    click.echo(
        f"{result.case.name:<16} {result.case.batch:>5} {rate:>18} {figures['step_ms']:>10.2f}"
    )


def _profile(
    session: Any, manifest: Manifest, result: EngineResult, quiet: bool
) -> list[dict[str, Any]]:
    from ..bench.profile import kernel_times

    times = kernel_times(session.read_profile(), manifest.tensors, result.steps, session.threads)
    if not quiet:
        for kernel in times:
            rate = kernel.gigabytes_per_second
            speed = "" if rate is None else f"{rate:8.1f} GB/s"
            each = 1e3 * kernel.seconds / result.steps
            click.echo(f"    {kernel.name:<20} {kernel.share:6.1%} {each:9.3f} ms a step {speed}")
    return [
        {
            "name": kernel.name,
            "seconds": kernel.seconds,
            "share": kernel.share,
            "calls": kernel.calls,
            "gigabytes_per_second": kernel.gigabytes_per_second,
        }
        for kernel in times
    ]
