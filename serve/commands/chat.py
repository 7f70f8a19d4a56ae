"""`enginewright chat`: a conversation in the terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import engine_options, sampling_options, sampling_params

if TYPE_CHECKING:
    from ...executor.sampling import SamplingParams
    from ..llm import LLM
    from .stats import Stopwatch


@click.command()
@engine_options
@click.option("-m", "--message", help="Say this, print the answer, and end.")
@click.option("--system", help="System message of the conversation.")
@sampling_options
@click.option("--stats", is_flag=True, help="Print tokens and tokens per second after an answer.")
def command(
    engine: Path, message: str | None, system: str | None, stats: bool, **options: Any
) -> None:
    """Talk to ENGINE. Type /reset to begin anew, and /exit or Ctrl-D to end."""
    from ..llm import LLM
    from .stats import Stopwatch

    params = sampling_params(options)
    params.validate()
    opening = time.perf_counter()
    with LLM(engine, **options) as llm:
        watch = Stopwatch(time.perf_counter() - opening, llm.client.info.open_seconds)
        chat = _Conversation(llm, params, system, watch if stats else None)
        if message is not None:
            chat.say(message)
        else:
            _talk(chat)


class _Conversation:
    """The messages so far, and how the next answer is made."""

    def __init__(
        self, llm: LLM, params: SamplingParams, system: str | None, watch: Stopwatch | None
    ) -> None:
        self._llm = llm
        self._params = params
        self._watch = watch
        self._opening = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = list(self._opening)

    def say(self, text: str) -> None:
        """Send a message and print the answer as it comes; Ctrl-C ends the answer."""
        messages = [*self._messages, {"role": "user", "content": text}]
        if self._watch:
            self._watch.restart()
        output = self._llm.chat_async(messages, self._params, streaming=True)
        try:
            for update in output:
                if self._watch:
                    self._watch.first()
                click.echo(update.outputs[0].text_diff, nl=False)
        except KeyboardInterrupt:
            output.abort()
        click.echo()
        if self._watch:
            click.echo(self._watch.summary([output]), err=True)
        answer = {"role": "assistant", "content": output.outputs[0].text}
        self._messages = [*messages, answer]


def _talk(chat: _Conversation) -> None:
    from ...runtime.errors import RequestError

    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if text == "/exit":
            return
        if text == "/reset":
            chat.reset()
        elif text:
            try:
                chat.say(text)
            except RequestError as error:
                click.echo(f"error: {error}", err=True)
