"""Tools and calls as plain text, for chat templates that know nothing of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .call_syntax import HERMES
from .tools import ToolUse

_ABOUT = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    """Return the conversation with its tools, calls and their results written out as text."""
    result = [_plain(message) for message in messages]
    if use.active:
        tools = "\n".join(json.dumps(tool.to_json(), ensure_ascii=False) for tool in use.tools)
        about = _ABOUT.format(tools=tools)
        if result and result[0]["role"] == "system":
            result[0]["content"] = f"{result[0]['content']}\n\n{about}"
        else:
            result.insert(0, {"role": "system", "content": about})
    return result


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    lines = [content] if content else []
    for call in calls:
        function = call["function"]
        body = {"name": function["name"], "arguments": function["arguments"]}
        text = json.dumps(body, ensure_ascii=False)
        lines.append(f"{HERMES.open}\n{text}\n{HERMES.close}")
    return {"role": message["role"], "content": "\n".join(lines)}
