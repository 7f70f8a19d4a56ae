"""Bodies of `/v1/messages`, and how they become a conversation."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from ...runtime.errors import RequestError
from ..conversation.dialect import Conversation
from ..conversation.tools import Tool, ToolUse, make_tool_use
from ..openai.chat_types import template_variables
from ..openai.types import Int, RequestFields


class Block(msgspec.Struct, kw_only=True):
    """One block of a message's content; which members it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None
    citations: Any = None


class TextBlock(msgspec.Struct, kw_only=True):
    """A block of text, in the system prompt or in a tool's result."""

    type: str
    text: str | None = None
    cache_control: Any = None
    citations: Any = None


class MessageParam(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolParam(msgspec.Struct, kw_only=True):
    """A tool of the client's."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Any = None


class ToolChoiceParam(msgspec.Struct, kw_only=True):
    """`tool_choice`: whether a tool must be used, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct, kw_only=True):
    """`thinking`: whether the model may reason before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int | None = None
    display: Any = None


class PromptFields(RequestFields, kw_only=True):
    """What makes the prompt of a message; all else is there for the answer alone."""

    messages: list[MessageParam]
    system: str | list[TextBlock] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def conversation(self) -> Conversation:
        """Return what the model is to answer; raises RequestError."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text_of(self.system, "system")})
        for message in self.messages:
            messages += _plain(message)
        variables = template_variables(self.chat_template_kwargs, None)
        if self.thinking is not None:
            variables.setdefault("enable_thinking", self.thinking.type != "disabled")
        last = messages[-1] if messages else {}
        return Conversation(
            messages=messages,
            tools=self._tool_use(),
            variables=variables,
            continue_final_message=last.get("role") == "assistant" and bool(last.get("content")),
        )

    def _tool_use(self) -> ToolUse:
        tools = [Tool(one.name, one.description, one.input_schema) for one in self.tools or ()]
        choice = self.tool_choice
        if choice is None:
            return make_tool_use(tools, None, None, None)
        parallel = not choice.disable_parallel_tool_use
        match choice.type:
            case "tool":
                if choice.name is None:
                    raise RequestError("tool_choice of type 'tool' needs a name", "tool_choice")
                return make_tool_use(tools, None, choice.name, parallel)
            case "any":
                return make_tool_use(tools, "required", None, parallel)
            case "auto" | "none":
                return make_tool_use(tools, choice.type, None, parallel)


class MessagesRequest(PromptFields, kw_only=True):
    """Body of `/v1/messages`."""

    max_tokens: Int
    stop_sequences: list[str] | None = None
    container: Any = None
    context_management: Any = None
    inference_geo: Any = None


class CountTokensRequest(PromptFields, kw_only=True):
    """Body of `/v1/messages/count_tokens`."""

    context_management: Any = None


def _plain(message: MessageParam) -> list[dict[str, Any]]:
    """Return the messages that one of Anthropic's is, as chat templates take them."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    text, thinking, calls = "", "", []
    for block in message.content:
        match block.type:
            case "text" if block.text is not None:
                text += block.text
            case "thinking" | "redacted_thinking":
                thinking += block.thinking or ""
            case "tool_use" if block.name:
                function = {"name": block.name, "arguments": block.input or {}}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "tool_result":
                content = _text_of(block.content or "", "messages")
                results.append(
                    {"role": "tool", "content": content, "tool_call_id": block.tool_use_id or ""}
                )
            case kind:
                raise RequestError(
                    f"a message has a block of type {kind[:40]!r} that cannot be read; this model "
                    "reads text, tool_use, tool_result and thinking",
                    "messages",
                )
    plain: dict[str, Any] = {"role": message.role, "content": text}
    if thinking:
        plain |= {"reasoning_content": thinking, "reasoning": thinking, "thinking": thinking}
    if calls:
        plain["tool_calls"] = calls
    if results and not text:
        return results
    return [*results, plain]


def _text_of(content: str | list[TextBlock], param: str) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text" or block.text is None:
            raise RequestError(
                f"{param} has a block of type {block.type[:40]!r}; this model reads text alone",
                param,
            )
    return "".join(block.text or "" for block in content)


def tool_input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object; text that is no object stands under `text`."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"text": value}
