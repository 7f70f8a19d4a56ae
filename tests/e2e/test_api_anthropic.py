"""The public `anthropic` client over the real model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from .api import wait_for_running
from .conftest import MODEL, Served

ASK: list[Any] = [{"role": "user", "content": "Say hello in one short sentence."}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as made:
        yield made


def test_message_streams_as_it_is_answered(client: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 24,
        "messages": ASK,
        "system": "You are kind.",
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**options)
    [block] = whole.content
    assert block.type == "text"
    assert block.text
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert final.content[0].to_dict() == block.to_dict()
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, system="You are kind.")
    made = client.messages.create(model=MODEL, max_tokens=1, messages=ASK, system="You are kind.")
    assert made.stop_reason == "max_tokens"
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_stop_sequence(client: anthropic.Anthropic) -> None:
    made = client.messages.create(
        model=MODEL,
        max_tokens=24,
        messages=ASK,
        stop_sequences=["!"],
        extra_body={"guided_grammar": 'start: "Hello! How are you?"'},
    )
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "!")
    assert made.content[0].type == "text"
    assert made.content[0].text == "Hello"


def test_a_tool_is_used(client: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**options)
    assert whole.stop_reason == "tool_use"
    [use] = [block for block in whole.content if block.type == "tool_use"]
    assert use.name == "get_weather"
    assert isinstance(use.input["city"], str)
    with client.messages.stream(**options) as stream:
        final = stream.get_final_message()
    [streamed] = [block for block in final.content if block.type == "tool_use"]
    assert streamed.input == use.input
    messages = [
        *options["messages"],
        {"role": "assistant", "content": whole.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": use.id, "content": "It is raining."}
            ],
        },
    ]
    answer = client.messages.create(
        model=MODEL,
        max_tokens=24,
        messages=messages,
        tools=[TOOL],
        extra_body={"temperature": 0},
    )
    assert answer.content[0].type in ("text", "tool_use")


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=1, messages=ASK)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, max_tokens=0, messages=ASK)


def test_closing_a_stream_frees_the_request(client: anthropic.Anthropic, served: Served) -> None:
    stream = client.messages.create(
        model=MODEL,
        max_tokens=2000,
        messages=ASK,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    begun = time.monotonic()
    for event in stream:
        if event.type == "content_block_delta":
            break
    stream.close()
    wait_for_running(served, False)
    print(f"freed {time.monotonic() - begun:.2f} s after the start")
