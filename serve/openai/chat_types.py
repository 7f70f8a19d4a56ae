"""Bodies of chat requests: messages, tools, and what chat completions add to every request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ...runtime.errors import RequestError
from ..conversation.dialect import RESERVED, Conversation
from ..conversation.tools import Tool, ToolUse, call_arguments, make_tool_use
from .types import Int, SamplingFields

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that the assistant made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: Int | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, kw_only=True):
    """The function that `tool_choice` names."""

    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` that demands one function."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | None


class ChatRequest(SamplingFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_tokens: Int | None = None
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None

    store: Any = None
    modalities: Any = None
    prediction: Any = None
    verbosity: Any = None

    def conversation(self) -> Conversation:
        """Return what the model is to answer; raises RequestError."""
        for name in ("functions", "function_call"):
            if getattr(self, name):
                raise RequestError(f"{name} was replaced by `tools` and `tool_choice`", name)
        if self.chat_template is not None:
            raise RequestError(
                "the chat template is the engine's own; chat_template_kwargs sets its variables",
                "chat_template",
            )
        return Conversation(
            messages=[plain(message) for message in self.messages],
            tools=tool_use(self.tools, self.tool_choice, self.parallel_tool_calls),
            variables=template_variables(self.chat_template_kwargs, self.reasoning_effort),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
        )


def tool_use(
    tools: Sequence[ToolDefinition] | None, choice: ToolChoice, parallel: bool | None
) -> ToolUse:
    """Return the checked use of tools; raises RequestError."""
    functions = [tool.function for tool in tools or ()]
    made = [Tool(one.name, one.description, one.parameters) for one in functions]
    if isinstance(choice, NamedToolChoice):
        return make_tool_use(made, None, choice.function.name, parallel)
    return make_tool_use(made, choice, None, parallel)


def template_variables(given: dict[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """Return the variables of the chat template; raises RequestError for those we set."""
    variables = dict(given or {})
    if taken := [name for name in RESERVED if name in variables]:
        raise RequestError(
            f"chat_template_kwargs sets {taken[0]}, which the server sets itself",
            "chat_template_kwargs",
        )
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
        if effort == "none":
            variables.setdefault("enable_thinking", False)
    return variables


def plain(message: Message) -> dict[str, Any]:
    """Return a message as chat templates take it; raises RequestError."""
    content = text_of(message.content)
    if content is None and not (message.role == "tool" or message.tool_calls):
        raise RequestError(f"the {message.role} message has no content", "messages")
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": content or ""}
    reasoning = message.reasoning_content or message.reasoning
    if role == "assistant" and reasoning:
        result |= {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}
    if role == "assistant" and message.tool_calls:
        result["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": call_arguments(call.function.arguments),
                },
            }
            for number, call in enumerate(message.tool_calls)
        ]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            result[name] = value
    return result


def text_of(content: str | list[ContentPart] | None) -> str | None:
    """Return the text of a message's content; raises RequestError for what is not text."""
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"a message has a part of type {part.type[:40]!r}; this model reads text alone",
                "messages",
            )
    return "".join(part.text or "" for part in content)
