"""`enginewright generate`: continue prompts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from .options import engine_options, sampling_options, sampling_params


@click.command()
@engine_options
@click.option("-p", "--prompt", "prompts", multiple=True, required=True, help="May be repeated.")
@sampling_options
@click.option("--ignore-eos", is_flag=True, help="Go on after the end of text.")
@click.option("--stats", is_flag=True, help="Print tokens and tokens per second.")
def command(
    engine: Path, prompts: tuple[str, ...], ignore_eos: bool, stats: bool, **options: Any
) -> None:
    """Continue prompts with ENGINE and print the answers."""
    import msgspec

    from ..llm import LLM
    from .stats import Stopwatch

    params = msgspec.structs.replace(sampling_params(options), ignore_eos=ignore_eos)
    params.validate()
    opening = time.perf_counter()
    with LLM(engine, **options) as llm:
        watch = Stopwatch(time.perf_counter() - opening, llm.client.info.open_seconds)
        outputs = [llm.generate_async(prompt, params, streaming=True) for prompt in prompts]
        for number, output in enumerate(outputs):
            if number:
                click.echo()
            click.echo(output.prompt, nl=False)
            for update in output:
                watch.first()
                click.echo(update.outputs[0].text_diff, nl=False)
            click.echo()
        if stats:
            click.echo(watch.summary(outputs), err=True)
