"""Grammars of demanded calls: llguidance takes them, and what they allow is what is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from enginewright.serve.conversation.call_grammar import call_grammar
from enginewright.serve.conversation.call_parser import CallParser
from enginewright.serve.conversation.call_syntax import HERMES, LLAMA, MISTRAL, CallSyntax
from enginewright.serve.conversation.pieces import CallStart
from enginewright.serve.conversation.tools import Tool, ToolUse
from tests.serve.tiny_tokenizer import make_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
}
TOOLS = (Tool("weather", "Tells it.", SCHEMA), Tool("time", None, None))
ONE = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "llama": '{"name": "weather", "parameters": {"city": "Oslo"}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
}
TWO = {
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
    "llama": ONE["llama"] + '; {"name": "time", "parameters": {}}',
    "mistral": ONE["mistral"][:-1] + ', {"name": "time", "arguments": {}}]',
}


def accepts(folder: Path, grammar: str, text: str) -> bool:
    tokenizer = make_tokenizer(folder)
    vocabulary = (folder / "tokenizer.json").read_text()
    made = LLTokenizer(vocabulary, eos_token=tokenizer.eos_token_ids[0])
    matcher = LLMatcher(made, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("syntax", [HERMES, LLAMA, MISTRAL], ids=lambda syntax: syntax.name)
def test_the_grammar_allows_calls_and_nothing_else(tmp_path: Path, syntax: CallSyntax) -> None:
    def grammar(use: ToolUse) -> str:
        return call_grammar(syntax, use, lambda _: None).value

    one, two = ONE[syntax.name], TWO[syntax.name]
    required = grammar(ToolUse(TOOLS, "required"))
    single = grammar(ToolUse(TOOLS, "required", parallel=False))
    named = grammar(ToolUse(TOOLS, named="time"))
    assert accepts(tmp_path, required, one)
    assert accepts(tmp_path, required, two)
    assert accepts(tmp_path, single, one)
    assert not accepts(tmp_path, single, two)
    assert not accepts(tmp_path, named, one)
    assert accepts(tmp_path, named, one.replace("weather", "time"))
    for wrong in (f"Sure. {one}", one.replace("Oslo", "Paris"), one.replace("weather", "rain"), ""):
        assert not accepts(tmp_path, required, wrong)


@pytest.mark.parametrize("syntax", [HERMES, LLAMA, MISTRAL], ids=lambda syntax: syntax.name)
def test_what_is_allowed_is_understood(syntax: CallSyntax) -> None:
    parser = CallParser(syntax, {"weather", "time"}, lambda: "id")
    pieces = parser.push(TWO[syntax.name]) + parser.flush()
    assert [p.name for p in pieces if isinstance(p, CallStart)] == ["weather", "time"]


def test_marks_that_are_special_tokens_are_named_by_their_ids(tmp_path: Path) -> None:
    """Here `<|im_start|>` plays the part of `[TOOL_CALLS]`: no ordinary token spells it."""
    token_id = make_tokenizer(tmp_path).special_token_id("<|im_start|>")
    lines = call_grammar(MISTRAL, ToolUse(TOOLS, named="time"), lambda _: token_id).value
    assert lines.startswith(f"start: <[{token_id}]> ")
    assert accepts(tmp_path, lines, '<|im_start|>[{"name": "time", "arguments": {}}]')
