"""The grammar of an answer that must be a tool call, in llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...executor.sampling import Guided
from .call_syntax import HERMES, MISTRAL, CallSyntax
from .tools import Tool, ToolUse

MAX_CALLS = 16  # in one answer that must hold calls
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(
    syntax: CallSyntax, use: ToolUse, special_token_id: Callable[[str], int | None]
) -> Guided:
    """Return the grammar of an answer that calls one of the forced tools of `use`.

    A mark that is a special token of the model is named by its id: text never spells it.
    """

    def mark(text: str) -> str:
        token_id = special_token_id(text)
        return _quoted(text) if token_id is None else f"<[{token_id}]>"

    def several(one: str, between: str) -> str:
        more = f" ({_quoted(between)} {one}){{0,{MAX_CALLS - 1}}}"
        return one + more if use.many else one

    if syntax is HERMES:
        call = f'{mark(syntax.open)} "\\n" object "\\n" {mark(syntax.close)}'
        lines = [f"start: {several('call', chr(10))}", f"call: {call}"]
    elif syntax is MISTRAL:
        lines = [f'start: {mark(syntax.open)} "[" {several("object", ", ")} "]"']
    else:
        lines = [f"start: {several('object', '; ')}"]
    tools = use.forced
    lines.append("object: " + " | ".join(f"object{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{syntax.arguments_key}": '
        lines.append(f'object{number}: {_quoted(head)} arguments{number} "}}"')
        lines.append(f"arguments{number}: %json {json.dumps(_compact(tool))}")
    return Guided("grammar", "\n".join(lines) + "\n")


def _compact(tool: Tool) -> dict[str, Any]:
    return {**tool.schema, "x-guidance": _COMPACT}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
