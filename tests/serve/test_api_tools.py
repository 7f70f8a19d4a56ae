"""Tools and reasoning over HTTP: every style, whole and streamed, in all three chat APIs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .api import named_events, serve_text
from .conftest import Served

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Says it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
ANTHROPIC_TOOLS = [
    {"name": tool["name"], "description": "Says it.", "input_schema": tool["parameters"]}
    for tool in FLAT_TOOLS
]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXTS = {
    "hermes": 'Sure.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ås"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "weather", "parameters": {"city": "Ås"}}; {"name": "time"}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ås"}}, {"name": "time"}]',
    "pythonic": "[weather(city='Ås'), time()]",
    "xml": "<tool_call>\n<function=weather>\n<parameter=city>\nÅs\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
}


def joined(events: list[Any]) -> dict[str, Any]:
    """Join the deltas of one choice, as clients do."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for event in events:
        [choice] = event["choices"]
        delta = choice["delta"]
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "type": call["type"], **call})
            else:
                function = message["tool_calls"][call["index"]]["function"]
                function["arguments"] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"]
    return message


def check_calls(calls: list[Any]) -> None:
    assert [call["function"]["name"] for call in calls] == ["weather", "time"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Ås"}, {}]
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("style", TEXTS)
def test_calls_of_every_style(tmp_path: Path, style: str) -> None:
    with serve_text(tmp_path, TEXTS[style], style) as served:
        body = CHAT | {"tools": TOOLS}
        [choice] = served.post("/v1/chat/completions", body).json["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == ("Sure." if style == "hermes" else None)
        check_calls(choice["message"]["tool_calls"])
        message = joined(served.post("/v1/chat/completions", body | {"stream": True}).events)
        assert message["finish_reason"] == "tool_calls"
        assert message["content"] == ("Sure." if style == "hermes" else "")
        check_calls(message["tool_calls"])


def test_without_tools_a_call_is_text(tmp_path: Path) -> None:
    with serve_text(tmp_path, TEXTS["hermes"], "hermes") as served:
        for extra in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            [choice] = served.post("/v1/chat/completions", CHAT | extra).json["choices"]
            assert choice["message"]["content"] == TEXTS["hermes"]
            assert choice["finish_reason"] == "stop"


def test_one_call_where_parallel_calls_are_off(tmp_path: Path) -> None:
    with serve_text(tmp_path, TEXTS["hermes"], "hermes") as served:
        body = CHAT | {"tools": TOOLS, "parallel_tool_calls": False}
        [choice] = served.post("/v1/chat/completions", body).json["choices"]
        assert len(choice["message"]["tool_calls"]) == 1


def test_choice_becomes_a_grammar(served: Served) -> None:
    def guided(choice: Any, **more: Any) -> str:
        body = CHAT | {"tools": TOOLS, "tool_choice": choice} | more
        assert served.post("/v1/chat/completions", body).status == 200
        guided = served.client.submitted[-1].guided
        return "" if guided is None else f"{guided.kind}: {guided.value}"

    assert guided("auto") == guided("none") == ""
    required = guided("required")
    assert required.startswith('grammar: start: call ("\\n" call){0,15}\n')
    assert '\\"time\\"' in required
    assert '\\"weather\\"' in required
    named = guided({"type": "function", "function": {"name": "time"}})
    assert '\\"weather\\"' not in named
    assert named.startswith("grammar: start: call\n")
    assert guided("required", parallel_tool_calls=False).startswith("grammar: start: call\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "other"}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": TOOLS * 100}, "tools"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
            "tool_choice",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_wrong_tools_are_named(served: Served, fields: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/chat/completions", CHAT | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


HISTORY = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I wonder.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]


@pytest.mark.parametrize("style", [None, "hermes"])
def test_results_reach_the_prompt(tmp_path: Path, style: str | None) -> None:
    """Also through a template that knows nothing of tools: they are written out as text."""
    with serve_text(tmp_path, "Fine.", style) as served:
        body = {"messages": HISTORY, "tools": TOOLS}
        tokens = served.post("/tokenize", body).json["tokens"]
        prompt = served.post("/detokenize", {"tokens": tokens}).json["prompt"]
        assert "rain" in prompt
        assert '"city": "Oslo"' in prompt
        assert "Says it." in prompt
        assert served.post("/v1/chat/completions", body).status == 200


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("think", "<think>\nHm, hm.\n</think>\n\nYes."),
        ("opened", "Hm, hm.\n</think>\n\nYes."),
        (
            "channel",
            "<|channel|>analysis<|message|>Hm, hm.<|start|>assistant<|channel|>final"
            "<|message|>Yes.",
        ),
    ],
)
def test_reasoning_is_told_from_the_answer(tmp_path: Path, style: str, text: str) -> None:
    with serve_text(tmp_path, text, style) as served:
        [choice] = served.post("/v1/chat/completions", CHAT).json["choices"]
        message = choice["message"]
        assert message["reasoning"] == message["reasoning_content"] == "Hm, hm."
        assert message["content"] == "Yes."
        streamed = joined(served.post("/v1/chat/completions", CHAT | {"stream": True}).events)
        assert (streamed["reasoning"], streamed["content"]) == ("Hm, hm.", "Yes.")
        hidden = served.post("/v1/chat/completions", CHAT | {"include_reasoning": False}).json
        assert "reasoning" not in hidden["choices"][0]["message"]
        output = served.post("/v1/responses", {"input": "Hi"}).json["output"]
        assert [item["type"] for item in output] == ["reasoning", "message"]
        reply = served.post("/v1/messages", CHAT | {"max_tokens": 99}).json
        assert [block["type"] for block in reply["content"]] == ["thinking", "text"]


def test_reasoning_that_a_template_began_is_ended_where_a_form_is_demanded(
    tmp_path: Path,
) -> None:
    with serve_text(tmp_path, "Yes", "opened") as served:
        body = CHAT | {"guided_choice": ["Yes", "No"]}
        [choice] = served.post("/v1/chat/completions", body).json["choices"]
        assert choice["message"]["content"] == "Yes"
        assert "reasoning" not in choice["message"]


def test_calls_in_responses(tmp_path: Path) -> None:
    with serve_text(tmp_path, TEXTS["hermes"], "hermes") as served:
        body = {"input": "Hi", "tools": FLAT_TOOLS}
        output = served.post("/v1/responses", body).json["output"]
        assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
        assert json.loads(output[1]["arguments"]) == {"city": "Ås"}
        events = named_events(served.post("/v1/responses", body | {"stream": True}).body)
        kind = "response.function_call_arguments."
        text = "".join(e["delta"] for e in events if e["type"] == kind + "delta")
        done = "".join(e["arguments"] for e in events if e["type"] == kind + "done")
        assert text == done == '{"city": "Ås"}{}'
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_calls_in_messages(tmp_path: Path) -> None:
    with serve_text(tmp_path, TEXTS["hermes"], "hermes") as served:
        body = CHAT | {"max_tokens": 200, "tools": ANTHROPIC_TOOLS}
        reply = served.post("/v1/messages", body).json
        assert reply["stop_reason"] == "tool_use"
        assert [block.get("input") for block in reply["content"]] == [None, {"city": "Ås"}, {}]
        events = named_events(served.post("/v1/messages", body | {"stream": True}).body)
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(d.get("partial_json", "") for d in deltas) == '{"city": "Ås"}{}'
        starts = [e["index"] for e in events if e["type"] == "content_block_start"]
        stops = [e["index"] for e in events if e["type"] == "content_block_stop"]
        assert starts == stops == [0, 1, 2]
