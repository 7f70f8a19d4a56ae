"""The `enginewright` command: the table of commands, and errors as one sentence."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from ..runtime.errors import EnginewrightError, InputError
from ..runtime.version import VERSION

# Name and one line of help; a command's module is imported when it is run.
COMMANDS = {
    "build": "Compile a checkpoint into an engine.",
    "inspect": "Tell what an engine is.",
    "check": "Tell whether this machine can run an engine.",
    "generate": "Continue prompts with an engine.",
    "chat": "Talk to an engine.",
    "serve": "Serve an engine over OpenAI's HTTP API.",
    "bench": "Measure an engine, or a server.",
    "eval": "Tell how good an engine is.",
}

_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class _Commands(click.Group):
    """A group that knows its commands' names without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f".commands.{cmd_name}", __package__).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands)
@click.version_option(VERSION, prog_name="enginewright")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Compile language models into engines, and serve them."""
    ctx.obj = traceback


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; an error is one sentence and a code of the error tree."""
    arguments = sys.argv[1:] if arguments is None else arguments
    show = "--traceback" in arguments or bool(os.environ.get("ENGINEWRIGHT_TRACEBACK"))
    try:
        code = cli.main(arguments, prog_name="enginewright", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; nothing more can be written, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except EnginewrightError as error:
        code = _fail(error, str(error), error.exit_code, show)
    except OSError as error:
        code = _fail(error, str(error), InputError.exit_code, show)
    except Exception as error:
        message = (
            f"unexpected {type(error).__name__}: {error} (this is a bug of enginewright; "
            "run again with `enginewright --traceback` and report it)"
        )
        code = _fail(error, message, EnginewrightError.exit_code, show)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: BaseException, message: str, code: int, show_traceback: bool) -> int:
    if show_traceback:
        raise error
    click.echo(f"error: {message}", err=True)
    return code
