"""Tools that a model may call, and how a request wants them used."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...runtime.errors import RequestError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """One function; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments; without one, any object."""
        return self.parameters or {"type": "object"}

    def to_json(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name, "description": self.description or ""}
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request; `named` is the one that must be called."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    named: str | None = None
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.choice != "none"

    @property
    def forced(self) -> tuple[Tool, ...]:
        """The tools of which one must be called; empty when the model is free."""
        if self.named is not None:
            return tuple(tool for tool in self.tools if tool.name == self.named)
        return self.tools if self.choice == "required" else ()

    @property
    def many(self) -> bool:
        """Whether the answer may hold more than one call."""
        return self.parallel and self.named is None


def make_tool_use(
    tools: Sequence[Tool],
    choice: Literal["auto", "none", "required"] | None,
    named: str | None,
    parallel: bool | None,
) -> ToolUse:
    """Return the checked use of tools; raises RequestError."""
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"there are {len(tools)} tools; give at most {MAX_TOOLS}", "tools")
    names = [tool.name for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"the tool name {name[:80]!r} is not made of 1 to 128 letters, digits and _.:-",
                "tools",
            )
    if len(set(names)) < len(names):
        raise RequestError("two tools have the same name", "tools")
    if named is not None and named not in names:
        raise RequestError(f"tool_choice names {named!r}, which is not in tools", "tool_choice")
    if choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools", "tool_choice")
    return ToolUse(tuple(tools), choice or "auto", named, parallel is not False)


def call_arguments(text: str) -> Any:
    """Return a call's arguments as templates expect them: an object, or the text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
