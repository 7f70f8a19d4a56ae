"""`enginewright bench serve`: a server under load, under the keys of `vllm bench serve`."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...runtime.errors import InputError

if TYPE_CHECKING:
    from ..bench.serve_run import ServeBench

_COUNT = click.IntRange(min=1)


@click.command()
@click.argument("url")
@click.option("--model", help="Model to ask for; the server's first by default.")
@click.option("--api-key", envvar="ENGINEWRIGHT_API_KEY", help="Key to send.")
@click.option("--chat", is_flag=True, help="Use /v1/chat/completions.")
@click.option("--num-prompts", type=_COUNT, default=100, show_default=True)
@click.option("--request-rate", type=float, default=math.inf, help="Open loop: requests a second.")
@click.option("--burstiness", type=float, default=1.0, show_default=True, help="1 is Poisson.")
@click.option("--max-concurrency", type=_COUNT, help="Closed loop: requests at once.")
@click.option("--sweep", help="concurrency=1,2,4 or rate=0.5,1,2 or auto.")
@click.option("--dataset", type=click.Path(path_type=Path), help="JSON lines, or ShareGPT's JSON.")
@click.option("--input-len", type=_COUNT, default=128, show_default=True, help="Synthetic tokens.")
@click.option("--output-len", type=_COUNT, default=64, show_default=True, help="Tokens of answers.")
@click.option("--prefix-len", type=click.IntRange(min=0), default=0, help="Shared by all prompts.")
@click.option("--range-ratio", type=click.FloatRange(0, 0.99), default=0.0, help="Length spread.")
@click.option("--num-warmups", type=click.IntRange(min=0), default=2, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--goodput", multiple=True, help="Objective such as ttft:200; may be repeated.")
@click.option("--metric-percentiles", default="50,90,95,99", show_default=True)
@click.option("--no-extras", is_flag=True, help="Send only what OpenAI's own API takes.")
@click.option("--check-determinism", is_flag=True, help="Compare answers alone and in company.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the figures as JSON.")
@click.option("--save-detailed", is_flag=True, help="With every request's times and text.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw a PNG; needs [plot].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def serve(url: str, as_json: bool, save: Path | None, **options: Any) -> None:
    """Measure the OpenAI-compatible server at URL."""
    from ..bench.serve_run import ServeBench

    bench = ServeBench(url, quiet=as_json, **options)
    try:
        report = asyncio.run(bench.run())
    except OSError as error:
        raise InputError(f"{url} does not answer: {error}; is the server up?") from error
    text = json.dumps(report, indent=2)
    if save is not None:
        save.write_text(text + os.linesep, encoding="utf-8")
    if as_json:
        click.echo(text)
    _end(bench)


def _end(bench: ServeBench) -> None:
    """Exit with 1 when the answers differed or every request failed."""
    if bench.failed:
        raise click.exceptions.Exit(1)
