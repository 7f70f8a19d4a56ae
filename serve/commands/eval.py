"""`enginewright eval`: perplexity, KL divergence and multiple choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ...runtime.errors import InputError
from .options import engine_options

_PATH = click.Path(path_type=Path)


@click.group(name="eval")
def command() -> None:
    """Tell how good an engine is."""


def _text_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--max-tokens", type=click.IntRange(min=2), help="Use no more of the text."),
        click.option(
            "--context",
            type=click.IntRange(min=2),
            default=512,
            show_default=True,
            help="Tokens of a window; windows know nothing of each other.",
        ),
        click.argument("text", type=_PATH),
    ):
        function = option(function)
    return function


@command.command(name="perplexity")
@engine_options
@_text_options
def perplexity_command(
    engine: Path, text: Path, context: int, max_tokens: int | None, as_json: bool, **options: Any
) -> None:
    """Print the perplexity of the file TEXT under ENGINE."""
    from ..evaluate.logits import open_source
    from ..evaluate.text import perplexity, windows

    ids = _encode(engine, text)
    source = open_source(str(engine), **options)
    try:
        cut = windows(ids, min(context, source.max_tokens), max_tokens)
        with _progress(sum(map(len, cut)), as_json) as advance:
            result = perplexity(source, cut, advance)
    finally:
        source.close()
    error = result.perplexity * result.standard_error
    _print(
        result.to_json(),
        as_json,
        f"perplexity {result.perplexity:.4f} ± {error:.4f} over {result.tokens} tokens "
        f"(mean loss {result.mean_nll:.5f} nats)",
    )


@command.command(name="kl")
@engine_options
@_text_options
@click.option("--against", required=True, help="Another engine, or a checkpoint (f32 reference).")
def kl_command(
    engine: Path,
    text: Path,
    against: str,
    context: int,
    max_tokens: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print how far ENGINE's distributions over the file TEXT are from a reference's."""
    from ..evaluate.logits import check_same_vocabulary, open_source
    from ..evaluate.text import divergence, windows

    ids = _encode(engine, text)
    source, reference = open_source(str(engine), **options), open_source(against)
    try:
        check_same_vocabulary(source, reference)
        size = min(context, source.max_tokens, reference.max_tokens)
        cut = windows(ids, size, max_tokens)
        with _progress(sum(map(len, cut)), as_json) as advance:
            result = divergence(source, reference, cut, advance)
    finally:
        source.close()
        reference.close()
    _print(
        result.to_json(),
        as_json,
        f"KL mean {result.mean_kl:.6f}, median {result.median_kl:.6f}, p99 {result.p99_kl:.5f}, "
        f"max {result.max_kl:.4f} nats over {result.positions} positions; same likeliest token at "
        f"{result.same_top:.2%}; perplexity {result.engine.perplexity:.4f}, reference "
        f"{result.reference.perplexity:.4f}",
    )


@command.command(name="choices")
@click.argument("target")
@click.argument("questions", type=_PATH)
@click.option("--limit", type=click.IntRange(min=1), help="Ask no more questions than this.")
@click.option("--model", help="Model to ask a server for; its first by default.")
@click.option("--api-key", envvar="ENGINEWRIGHT_API_KEY", help="Key to send to a server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def choices_command(
    target: str,
    questions: Path,
    limit: int | None,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Answer the QUESTIONS (JSON lines) with TARGET, an engine folder or a server's URL."""
    from ..evaluate.choices import SessionScorer, read_questions, run_choices

    asked = read_questions(questions, limit)
    with _progress(len(asked), as_json) as advance:
        if "://" in target:
            result = asyncio.run(_ask_server(target, asked, model, api_key, advance))
        else:
            from ..evaluate.logits import open_source

            tokenizer = _tokenizer(Path(target))
            source = open_source(target)
            try:
                scorer = SessionScorer(source, tokenizer)
                result = asyncio.run(run_choices(scorer, asked, advance))
            finally:
                source.close()
    _print(
        result.to_json(),
        as_json,
        f"acc {result.acc:.4f} ± {result.acc_stderr:.4f}, acc_norm {result.acc_norm:.4f} over "
        f"{result.questions} questions",
    )


async def _ask_server(
    url: str, asked: Any, model: str | None, key: str | None, advance: Callable[[int], None]
) -> Any:
    import orjson

    from ..bench.http_stream import HttpClient
    from ..evaluate.choices import ServerScorer, run_choices

    client = HttpClient(url, {"authorization": f"Bearer {key}"} if key else {})
    try:
        if model is None:
            model = orjson.loads((await client.get("/v1/models"))[1])["data"][0]["id"]
        return await run_choices(ServerScorer(client, str(model)), asked, advance)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{url} does not answer as a server of ours: {error!r}") from error
    finally:
        await client.close()


def _encode(engine: Path, text: Path) -> list[int]:
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the text {text} cannot be read: {error}") from error
    return _tokenizer(engine).encode(content, add_special_tokens=False)


def _tokenizer(engine: Path) -> Any:
    from ..tokenizer import Tokenizer

    return Tokenizer(engine / "tokenizer")


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _print(figures: dict[str, Any], as_json: bool, line: str) -> None:
    click.echo(json.dumps(figures, indent=2) if as_json else line)
