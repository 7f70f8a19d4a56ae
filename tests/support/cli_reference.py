"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from enginewright.serve.cli import cli

_HEAD = """# Command line reference

Made from the code by `scripts/docs`, and compared by a test. [cli.md](cli.md) explains by task.
"""


def reference() -> str:
    """Return the whole document."""
    return "\n".join([_HEAD, *_command("enginewright", cli)]).rstrip() + "\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"## {name}\n"
    yield f"    {_usage(name, command, context)}\n"
    yield " ".join((command.help or "").split()) + "\n"
    options = [found for found in command.params if isinstance(found, click.Option)]
    if options:
        yield "| option | what |\n|---|---|"
        yield from (_row(option, context) for option in options)
        yield ""
    if command.epilog:
        yield command.epilog + "\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _command(f"{name} {child}", found)


def _usage(name: str, command: click.Command, context: click.Context) -> str:
    return " ".join([name, *command.collect_usage_pieces(context)])


def _row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    names, text = record if record is not None else ("", "")
    spelled = names.replace("|", "\\|")
    return f"| `{spelled}` | {' '.join(text.split())} |"


if __name__ == "__main__":
    print(reference(), end="")
