"""Bodies of `/v1/responses`, and how their items become a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ...executor.sampling import Guided
from ...runtime.errors import RequestError
from ..conversation.dialect import Conversation
from ..conversation.tools import Tool, ToolUse, call_arguments, make_tool_use
from .chat_types import ReasoningEffort, template_variables
from .guided import JsonSchemaFormat, ResponseFormat, from_format, only_one
from .types import Int, RequestFields


class Part(msgspec.Struct, kw_only=True):
    """One part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, kw_only=True):
    """One item of `input`: a message, a call, a call's output, or reasoning."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    """A function that may be called."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` that demands one function."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, kw_only=True):
    """`text.format`: the form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """`text` of a request."""

    format: TextFormat | None = None
    verbosity: Any = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """`reasoning` of a request."""

    effort: ReasoningEffort | None = None
    summary: Any = None
    generate_summary: Any = None


class ResponsesRequest(RequestFields, kw_only=True):
    """Body of `/v1/responses`."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Int | None = None
    top_logprobs: Int | None = None
    include: list[str] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: bool | None = None
    prompt: Any = None
    conversation: Any = None

    truncation: Any = None
    max_tool_calls: Any = None
    stream_options: Any = None
    prompt_cache_retention: Any = None

    def tool_use(self) -> ToolUse:
        """Return the checked use of tools; raises RequestError."""
        tools = [Tool(one.name, one.description, one.parameters) for one in self.tools or ()]
        if isinstance(self.tool_choice, ResponseToolChoice):
            return make_tool_use(tools, None, self.tool_choice.name, self.parallel_tool_calls)
        return make_tool_use(tools, self.tool_choice, None, self.parallel_tool_calls)

    def guided_field(self) -> str:
        """Return the field to blame for a constraint that cannot be followed."""
        has_format = self.text is not None and self.text.format is not None
        return "text" if has_format else RequestFields.guided_field(self)

    def guided(self) -> Guided | None:
        """Return the constraint that `text.format` or one of our fields asks for."""
        form = None if self.text is None or self.text.format is None else self.text.format
        found = {"guided": RequestFields.guided(self)}
        if form is not None:
            schema = JsonSchemaFormat(name=form.name, schema=form.schema)
            response_format = ResponseFormat(type=form.type, json_schema=schema)
            found["text.format"] = from_format(response_format, "text")
        return only_one(found)

    def to_conversation(self, earlier: Sequence[Mapping[str, Any]]) -> Conversation:
        """Return what the model is to answer; `earlier` is the conversation it goes on with.

        Instructions stand before everything and are not part of what a later request goes on with.
        """
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        effort = None if self.reasoning is None else self.reasoning.effort
        return Conversation(
            messages=[*system, *earlier, *input_messages(self.input)],
            tools=self.tool_use(),
            variables=template_variables(self.chat_template_kwargs, effort),
        )


def input_messages(given: str | Sequence[Item]) -> list[dict[str, Any]]:
    """Return the messages of `input` as chat templates take them; raises RequestError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    reasoning = ""
    for item in given:
        match item.type:
            case "reasoning":
                reasoning += _text(item.content) or _text(item.summary) or ""
            case "function_call_output":
                output = _text(item.output)
                if output is None:
                    raise RequestError("a function_call_output has no output", "input")
                messages.append(
                    {"role": "tool", "content": output, "tool_call_id": item.call_id or ""}
                )
            case "function_call":
                message = _assistant(messages, reasoning)
                reasoning = ""
                message.setdefault("tool_calls", []).append(_call(item))
            case "message":
                messages.append(_message(item, reasoning))
                reasoning = ""
    return messages


def _message(item: Item, reasoning: str) -> dict[str, Any]:
    content = _text(item.content)
    if item.role is None or content is None:
        raise RequestError("a message of input needs a role and a content", "input")
    role = "system" if item.role == "developer" else item.role
    message: dict[str, Any] = {"role": role, "content": content}
    return message | (_reasoning(reasoning) if role == "assistant" and reasoning else {})


def _assistant(messages: list[dict[str, Any]], reasoning: str) -> dict[str, Any]:
    """Return the assistant's message that a call belongs to: the newest one, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        messages.append(message | (_reasoning(reasoning) if reasoning else {}))
    return messages[-1]


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text, "thinking": text}


def _call(item: Item) -> dict[str, Any]:
    if not item.name:
        raise RequestError("a function_call of input has no name", "input")
    function = {"name": item.name, "arguments": call_arguments(item.arguments or "{}")}
    return {"id": item.call_id or "", "type": "function", "function": function}


def _text(content: str | list[Part] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.text is None and part.refusal is None:
            raise RequestError(
                f"input has a part of type {part.type[:40]!r}; this model reads text alone", "input"
            )
    return "".join(part.text or part.refusal or "" for part in content)
