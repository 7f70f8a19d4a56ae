"""Tool calls in every style, at every place where a delta may end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginewright.serve.conversation.answer_parser import AnswerParser, PieceParser
from enginewright.serve.conversation.call_parser import CallParser
from enginewright.serve.conversation.call_syntax import HERMES, LLAMA, MISTRAL
from enginewright.serve.conversation.pieces import (
    CallArguments,
    CallStart,
    Piece,
    Reasoning,
    Text,
    merged,
)
from enginewright.serve.conversation.pythonic import PythonicParser
from enginewright.serve.conversation.reasoning import STYLES, ReasoningSplitter
from enginewright.serve.conversation.tools import Tool
from enginewright.serve.conversation.xml_calls import XmlCallParser

NAMES = {"weather", "time", "say"}
ARGS = '{"city": "Ås }]\\"{", "days": [1, {"x": null}]}'
OTHER = '{"a":1}'


def ids() -> Callable[[], str]:
    counter = itertools.count()
    return lambda: f"id{next(counter)}"


TYPES = {
    "city": {"type": "string"},
    "days": {"type": "array"},
    "count": {"type": "integer"},
    "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "wet": {"type": ["boolean", "null"]},
}
TOOLS = [Tool("weather", None, {"type": "object", "properties": TYPES}), Tool("time"), Tool("say")]


def make(style: str) -> PieceParser:
    if style == "pythonic":
        return PythonicParser(ids())
    if style == "xml":
        return XmlCallParser(TOOLS, ids())
    syntax = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL}[style]
    return CallParser(syntax, NAMES, ids())


def call(index: int, name: str, arguments: str, call_id: str | None = None) -> list[Piece]:
    return [CallStart(index, call_id or f"id{index}", name), CallArguments(index, arguments)]


CASES: list[tuple[str, str, list[Piece]]] = [
    ("hermes", "Just text, < and <tool_cal.\n", [Text("Just text, < and <tool_cal.\n")]),
    (
        "hermes",
        f'<tool_call>\n{{"name": "weather", "arguments": {ARGS}}}\n</tool_call>',
        call(0, "weather", ARGS),
    ),
    (
        "hermes",
        f'Let me see.\n\n<tool_call>{{"arguments": {ARGS}, "name": "weather"}}</tool_call>\n'
        f'<tool_call>\n{{"name": "time"}}\n</tool_call>\n\nDone.',
        [Text("Let me see."), *call(0, "weather", ARGS), *call(1, "time", "{}"), Text("Done.")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "say", "arguments": "{\\"a\\":1}"}</tool_call>',
        call(0, "say", OTHER),
    ),
    (
        "hermes",
        '<tool_call>{"name": "say", "arguments": null}</tool_call>',
        call(0, "say", "{}"),
    ),
    ("hermes", "<tool_call>nonsense</tool_call>", [Text("<tool_call>nonsense</tool_call>")]),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', [Text('<tool_call>{"name": 5}</tool_call>')]),
    ("hermes", '<tool_call>{"nam', [Text('<tool_call>{"nam')]),
    ("hermes", '<tool_call>{"name": "say", "arguments": {"a', call(0, "say", '{"a')),
    (
        "hermes",
        f'<tool_call>{{"name": "say", "arguments": {OTHER}}}\n{{"name": "time", "arguments": {{}}}}'
        "</tool_call>",
        [*call(0, "say", OTHER), *call(1, "time", "{}")],
    ),
    ("llama", f'{{"name": "weather", "parameters": {ARGS}}}', call(0, "weather", ARGS)),
    (
        "llama",
        f'<|python_tag|>{{"type": "function", "name": "say", "parameters": {OTHER}}}; '
        '{"name": "time", "parameters": {}}',
        [*call(0, "say", OTHER), *call(1, "time", "{}")],
    ),
    ("llama", '{"answer": 42, "why": [1]}', [Text('{"answer": 42, "why": [1]}')]),
    ("llama", '  {"name": "Bob", "age": 5}', [Text('  {"name": "Bob", "age": 5}')]),
    ("llama", 'Look: {"name": "say"}', [Text('Look: {"name": "say"}')]),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGS}}}, '
        '{"name": "time", "arguments": {}}]',
        [*call(0, "weather", ARGS), *call(1, "time", "{}")],
    ),
    (
        "mistral",
        f"On it.[TOOL_CALLS]weather[ARGS]{ARGS}[TOOL_CALLS]time{{}}",
        [Text("On it."), *call(0, "weather", ARGS), *call(1, "time", "{}")],
    ),
    (
        "mistral",
        f"[TOOL_CALLS]say[CALL_ID]abcdefghi[ARGS]{OTHER}",
        call(0, "say", OTHER, "abcdefghi"),
    ),
    ("mistral", "[TOOL_CALLS] two words {", [Text("[TOOL_CALLS] two words {")]),
    (
        "pythonic",
        "[weather(city='Å]s', days=[1, {'x': None}]), time()]",
        [
            *call(0, "weather", '{"city": "Å]s", "days": [1, {"x": null}]}'),
            *call(1, "time", "{}"),
        ],
    ),
    ("pythonic", "[1, 2, 3] is a list", [Text("[1, 2, 3] is a list")]),
    ("pythonic", "Hello [weather()]", [Text("Hello [weather()]")]),
    ("pythonic", "[weather(1)]", [Text("[weather(1)]")]),
    ("pythonic", "[weather(city=", [Text("[weather(city=")]),
    (
        "xml",
        "Well.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nÅs <b>&\n\n</parameter>\n"
        "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=time>\n</function>\n</tool_call>\nDone.",
        [
            Text("Well."),
            *call(0, "weather", '{"city": "Ås <b>&\\n", "days": [1, 2]}'),
            *call(1, "time", "{}"),
            Text("Done."),
        ],
    ),
    (
        "xml",
        "<function=weather><parameter=city>5</parameter><parameter=count>5</parameter>"
        "<parameter=share>0.5</parameter><parameter=wet>True</parameter>"
        "<parameter=other>7</parameter></function>",
        call(0, "weather", '{"city": "5", "count": 5, "share": 0.5, "wet": true, "other": "7"}'),
    ),
    (
        "xml",
        "<function=weather><parameter=count>five</parameter><parameter=days>[1,</parameter>"
        "<parameter=share>null</parameter></function></tool_call>",
        call(0, "weather", '{"count": "five", "days": "[1,", "share": null}'),
    ),
    ("xml", "a < b <tool_cal and <functions>", [Text("a < b <tool_cal and <functions>")]),
    ("xml", "<tool_call>{}</tool_call>\n", [Text("<tool_call>{}</tool_call>\n")]),
    ("xml", "<tool_call>\n<function=a b>", [Text("<tool_call>\n<function=a b>")]),
    ("xml", "<tool_call> <funct", [Text("<tool_call> <funct")]),
    ("xml", "<function=say>\n<parameter=text>\nlong", [CallStart(0, "id0", "say")]),
    (
        "xml",
        "<function=say><parameter=a>b</parameter>oh</function>",
        [*call(0, "say", '{"a": "b"}'), Text("oh</function>")],
    ),
]


def run(parser: PieceParser, parts: list[str]) -> list[Piece]:
    pieces: list[Piece] = []
    for part in parts:
        pieces += parser.push(part)
    return merged(pieces + parser.flush())


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_every_split_gives_the_same(style: str, text: str, expected: list[Piece]) -> None:
    assert run(make(style), [text]) == expected
    assert run(make(style), list(text)) == expected
    for cut in range(1, len(text)):
        assert run(make(style), [text[:cut], text[cut:]]) == expected
    for size in (2, 3, 5, 7):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert run(make(style), parts) == expected


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_every_two_cuts_give_the_same(style: str, text: str, expected: list[Piece]) -> None:
    for first, second in itertools.combinations(range(1, len(text), 3), 2):
        parts = [text[:first], text[first:second], text[second:]]
        assert run(make(style), parts) == expected


def test_arguments_stream_before_the_call_ends() -> None:
    parser = make("hermes")
    assert parser.push('<tool_call>{"name": "say", "arguments": {"text": "long ') == [
        CallStart(0, "id0", "say"),
        *[CallArguments(0, char) for char in '{"text": "long '],
    ]


def test_only_one_call_where_only_one_is_wanted() -> None:
    text = "".join(f'<tool_call>{{"name": "say", "arguments": {OTHER}}}</tool_call>' for _ in "ab")
    parser = CallParser(HERMES, NAMES, ids(), many=False)
    assert run(parser, [text]) == call(0, "say", OTHER)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["hermes", "llama", "mistral", "pythonic"]), st.data())
def test_any_text_any_cut(style: str, data: st.DataObject) -> None:
    fragments = st.sampled_from(
        ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "{", "}", "[",
         "]", '"name"', ":", '"say"', '"arguments"', "say(", ")", " ", "\n", "x", ",", "'", "\\"]
    )  # fmt: skip
    text = "".join(data.draw(st.lists(fragments, max_size=14)))
    whole = run(make(style), [text])
    assert run(make(style), list(text)) == whole
    if not any(isinstance(piece, CallStart) for piece in whole):
        assert "".join(piece.text for piece in whole if isinstance(piece, Text)) == text


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_reasoning_at_every_split(style: object) -> None:
    assert style in STYLES
    chosen = next(one for one in STYLES if one is style)
    text = f"{chosen.opens[0]}\nI think <b> so.\n\nYes. \n"
    if chosen.name == "channel":
        text += "<|end|><|start|>assistant"
    text += f"{chosen.close}\n\nAnswer <1>.\n"
    expected = [Reasoning("I think <b> so.\n\nYes."), Text("Answer <1>.\n")]
    for cut in range(len(text)):
        splitter = ReasoningSplitter(chosen)
        pieces = splitter.push(text[:cut]) + splitter.push(text[cut:]) + splitter.flush()
        assert merged(pieces) == expected


def test_reasoning_that_the_prompt_began_and_calls_after_it() -> None:
    text = f'hm </think>\n<tool_call>{{"name": "say", "arguments": {OTHER}}}</tool_call>'
    expected = [Reasoning("hm"), *call(0, "say", OTHER)]
    for cut in range(len(text)):
        parser = AnswerParser(ReasoningSplitter(STYLES[0], inside=True), make("hermes"))
        pieces = parser.push(text[:cut], False) + parser.push(text[cut:], True)
        assert merged(pieces) == expected
        assert parser.has_calls


def test_arguments_are_valid_json() -> None:
    for _, _, expected in CASES:
        for piece in expected:
            if isinstance(piece, CallArguments) and piece.text != '{"a':
                json.loads(piece.text)
