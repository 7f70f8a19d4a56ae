"""How models write tool calls: the styles, and which one a chat template speaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One style of writing calls: as JSON, unless it is said otherwise."""

    name: str
    open: str  # what begins a call in the middle of text
    close: str = ""  # what ends it
    bare: bool = False  # an answer that begins with { is a call
    separators: str = ""  # characters between calls
    prefixed: bool = False  # the name may stand before the object of arguments
    arguments_key: str = "arguments"
    pythonic: bool = False  # the answer is a Python list of calls
    tags: bool = False  # a call is written in tags, one an argument
    short_ids: bool = False  # call ids are nine letters and digits


HERMES = CallSyntax("hermes", "<tool_call>", "</tool_call>")
LLAMA = CallSyntax(
    "llama", "<|python_tag|>", bare=True, separators=";,", arguments_key="parameters"
)
MISTRAL = CallSyntax("mistral", "[TOOL_CALLS]", separators=",[]", prefixed=True, short_ids=True)
XML = CallSyntax("xml", "<tool_call>", "</tool_call>", tags=True)
PYTHONIC = CallSyntax("pythonic", "[", pythonic=True)

# What stands in the templates of each style; the first that is found decides.
_SIGNS = (
    ("[TOOL_CALLS]", MISTRAL),
    ("<function=", XML),
    ("<tool_call>", HERMES),
    ("func_name1(params_name1", PYTHONIC),
    ("[func_name", PYTHONIC),
    ("<|python_tag|>", LLAMA),
    ("dictionary of argument name", LLAMA),
)


def knows_tools(template: str) -> bool:
    """Return whether a template shows tools to the model."""
    return "tools" in template


def detect_syntax(template: str) -> CallSyntax:
    """Return the style a template asks for; Hermes' where it does not say."""
    if knows_tools(template):
        for sign, syntax in _SIGNS:
            if sign in template:
                return syntax
    return HERMES
