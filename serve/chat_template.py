"""Chat templates: messages to prompt text, in Jinja's immutable sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..runtime.errors import RequestError
from .tokenizer import Tokenizer


class ChatTemplate:
    """One compiled template with what Hugging Face's templates expect to find around them."""

    def __init__(self, source: str, bos_token: str | None, eos_token: str | None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template does not compile: {error}") from error

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """Return the template that came with a tokenizer; raises RequestError if none did."""
        if tokenizer.chat_template is None:
            raise RequestError("the model has no chat template; give it a plain prompt", "messages")
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt text of a conversation.

        Raises RequestError when the template refuses the messages or fails on them.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **self._special,
                **variables,
            )
        except Exception as error:  # a template can raise whatever its expressions raise
            reason = str(error) or type(error).__name__
            raise RequestError(
                f"the model's chat template cannot render these messages: {reason}", "messages"
            ) from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
