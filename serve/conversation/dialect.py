"""How one model converses: its chat template, and the styles that the template speaks."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...executor.sampling import SamplingParams
from ...runtime.errors import RequestError
from ..chat_template import ChatTemplate
from ..tokenizer import Tokenizer
from .answer_parser import AnswerParser, PieceParser
from .call_grammar import call_grammar
from .call_parser import CallParser
from .call_syntax import HERMES, LLAMA, CallSyntax, detect_syntax, knows_tools
from .pythonic import PythonicParser
from .reasoning import ReasoningSplitter, detect_reasoning, starts_in_reasoning
from .tool_text import with_tools
from .tools import ToolUse
from .xml_calls import XmlCallParser

RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model is to answer: messages as templates take them, tools, template variables."""

    messages: Sequence[Mapping[str, Any]]
    tools: ToolUse = field(default_factory=ToolUse)
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model reads it, and how its answer is to be sampled and read."""

    text: str
    params: SamplingParams
    parser: Callable[[], AnswerParser]  # one for each choice


class Dialect:
    """A model's template with its styles of tool calls and reasoning.

    Raises RequestError when the model has no template, or one that does not compile.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._template = ChatTemplate.of(tokenizer)
        source = tokenizer.chat_template or ""
        self._tokenizer = tokenizer
        self.knows_tools = knows_tools(source)
        self.syntax = detect_syntax(source)
        self.reasoning = detect_reasoning(source)

    def prompt(self, conversation: Conversation, params: SamplingParams) -> Prompt:
        """Return the prompt of a conversation; raises RequestError."""
        use = conversation.tools
        text = self._render(conversation)
        syntax = self.syntax
        if use.forced:
            if params.guided is not None:
                raise RequestError(
                    "tool_choice demands a tool call and another field demands a format; "
                    "give one of them",
                    "tool_choice",
                )
            # Grammars hold JSON, which models of the other styles write as well when they must.
            syntax = LLAMA if syntax.pythonic else HERMES if syntax.tags else syntax
            guided = call_grammar(syntax, use, self._tokenizer.special_token_id)
            params = msgspec.structs.replace(params, guided=guided)
        inside = self.reasoning is not None and starts_in_reasoning(self.reasoning, text)
        if inside and params.guided is not None:
            assert self.reasoning is not None
            text = f"{text.rstrip()}\n\n{self.reasoning.close}\n\n"  # the answer comes at once
            inside = False
        reads_calls = use.active and (params.guided is None or bool(use.forced))
        if self._marks_are_special(syntax if reads_calls else None):
            params = msgspec.structs.replace(params, skip_special_tokens=False)

        def parser() -> AnswerParser:
            splitter = None if self.reasoning is None else ReasoningSplitter(self.reasoning, inside)
            return AnswerParser(splitter, _calls(syntax, use) if reads_calls else None)

        return Prompt(text, params, parser)

    def _render(self, conversation: Conversation) -> str:
        if not conversation.messages:
            raise RequestError("messages is empty; it needs at least one message", "messages")
        messages, use = conversation.messages, conversation.tools
        variables: dict[str, Any] = dict(conversation.variables)
        if not self.knows_tools:
            messages = with_tools(messages, use)
        elif use.active:
            variables["tools"] = [tool.to_json() for tool in use.tools]
        final = str(messages[-1].get("content") or "")
        continues = conversation.continue_final_message
        if continues and (messages[-1]["role"] != "assistant" or not final.strip()):
            raise RequestError(
                "continue_final_message needs a last message of the assistant with text", "messages"
            )
        text = self._template.render(
            messages,
            add_generation_prompt=conversation.add_generation_prompt and not continues,
            **variables,
        )
        if not continues:
            return text
        final = final.rstrip()
        end = text.rfind(final)
        if end < 0:
            raise RequestError("the chat template changes the last message; it cannot be continued")
        return text[: end + len(final)]

    def _marks_are_special(self, syntax: CallSyntax | None) -> bool:
        marks = [] if self.reasoning is None else list(self.reasoning.special_marks)
        marks += [] if syntax is None else [syntax.open, syntax.close]
        return any(self._tokenizer.special_token_id(mark) is not None for mark in marks)


def _calls(syntax: CallSyntax, use: ToolUse) -> PieceParser:
    new_id = _short_id if syntax.short_ids else _long_id
    if syntax.pythonic:
        return PythonicParser(new_id, use.many)
    if syntax.tags:
        return XmlCallParser(use.tools, new_id, use.many)
    return CallParser(syntax, {tool.name for tool in use.tools}, new_id, use.many)


def _long_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id() -> str:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(9))
