"""The public `openai` client over the real model: tools, formats, responses, and our fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from .api import post, running
from .conftest import MODEL, Served, rounding

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 20},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_named_tool_is_called(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=100,
        temperature=0,
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert sorted(arguments) == ["city", "unit"]
    assert arguments["unit"] in ("celsius", "fahrenheit")


def test_a_required_tool_streams_as_it_is_answered(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 100,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**options)
    [call] = whole.choices[0].message.tool_calls or []
    with client.chat.completions.stream(**options) as stream:
        deltas = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls or []
    assert call.type == streamed.type == "function"
    assert streamed.function.name == call.function.name
    assert streamed.function.arguments == call.function.arguments
    assert "".join(event.arguments_delta for event in deltas) == call.function.arguments
    json.loads(call.function.arguments)


def test_results_of_tools_are_read(client: openai.OpenAI, served: Served) -> None:
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "It is raining."},
    ]
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, max_tokens=24, temperature=0
    )
    assert reply.choices[0].message.content
    served.must_know("it does not read what a tool says")
    assert "rain" in reply.choices[0].message.content


class City(BaseModel):
    """A schema for the client's own parser."""

    name: str
    large: bool


def test_a_schema_is_kept(client: openai.OpenAI, served: Served) -> None:
    served.must_know("it does not end a text that may go on")
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        response_format=City,
        max_tokens=120,
        temperature=0,
    )
    assert isinstance(reply.choices[0].message.parsed, City)


def test_forms_of_answers(client: openai.OpenAI, served: Served) -> None:
    def ask(**extra: Any) -> str:
        reply = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Is the sky blue?"}],
            max_tokens=60,
            temperature=0,
            extra_body=extra,
        )
        return reply.choices[0].message.content or ""

    assert ask(guided_choice=["Yes", "No"]) in ("Yes", "No")
    assert re.fullmatch("[A-C]{3}-[0-9]{2}", ask(guided_regex="[A-C]{3}-[0-9]{2}"))
    assert ask(guided_grammar='start: "sky" (" is blue" | " is red") "."').startswith("sky is ")
    assert ask(response_format={"type": "ebnf", "ebnf": 'root ::= "a" "b"+ "c"'})[:2] == "ab"
    served.must_know("between the parts of an object it writes blanks without end")
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"]}
    schema["additionalProperties"] = False
    assert "blue" in json.loads(ask(guided_json=schema))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(["}, "guided_regex"),
        ({"guided_json": '{"type": 5}'}, "guided_json"),
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nothing"}},
                }
            },
            "response_format",
        ),
    ],
)
def test_a_wrong_constraint_is_the_fault_of_its_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=8, stream=stream, extra_body=fields
            )
        assert error.value.param == param


def test_response_and_its_successor(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="My name is Ada.", max_output_tokens=16, temperature=0
    )
    assert first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model=MODEL,
        input="What is my name?",
        previous_response_id=first.id,
        max_output_tokens=16,
        temperature=0,
    )
    conversation: list[Any] = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    same = client.chat.completions.create(
        model=MODEL, messages=conversation, max_tokens=16, temperature=0
    )
    assert second.output_text == same.choices[0].message.content
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_streamed_response(client: openai.OpenAI, served: Served) -> None:
    served.must_know("it does not end an answer, and only a whole one is streamed as completed")
    options: dict[str, Any] = {
        "model": MODEL,
        "input": "Say hello.",
        "max_output_tokens": 120,
        "temperature": 0,
    }
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_response_calls_a_tool(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "strict": True, **TOOLS[0]["function"]}
    reply = client.responses.create(
        model=MODEL,
        input="What is the weather in Oslo?",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=100,
        temperature=0,
    )
    [call] = [item for item in reply.output if item.type == "function_call"]
    assert "city" in json.loads(call.arguments)


def test_bias_and_bad_words(client: openai.OpenAI, served: Served) -> None:
    plain = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=6, temperature=0
    )
    words = plain.choices[0].text.split()
    banned = client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        max_tokens=6,
        temperature=0,
        extra_body={"bad_words": words[:1]},
    )
    assert words[0] not in banned.choices[0].text.split()
    [token] = post(served, "/tokenize", {"prompt": " blue"})[1]["tokens"]
    biased = client.completions.create(
        model=MODEL, prompt="The sky is", max_tokens=3, temperature=0, logit_bias={str(token): 100}
    )
    assert biased.choices[0].text == " blue blue blue"


def test_ids_of_tokens_are_the_tokens(client: openai.OpenAI, served: Served) -> None:
    reply = client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        max_tokens=8,
        temperature=0,
        extra_body={"return_token_ids": True, "request_id": "ids-1"},
    )
    choice: Any = reply.choices[0]
    assert reply.id == "cmpl-ids-1"
    text = post(served, "/detokenize", {"tokens": choice.token_ids})[1]["prompt"]
    assert text == choice.text


def test_a_prompt_is_scored(client: openai.OpenAI, served: Served) -> None:
    """The log-probabilities of an echoed text are those of writing it."""
    made = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=6, temperature=0, logprobs=0
    )
    assert made.choices[0].logprobs is not None
    scored = client.completions.create(
        model=MODEL,
        prompt="The capital of France is" + made.choices[0].text,
        max_tokens=0,
        echo=True,
        logprobs=0,
    )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[-6:] == pytest.approx(
        made.choices[0].logprobs.token_logprobs, rel=0, abs=rounding(served.engine)
    )
    assert running(served) == 0


def test_deadline(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        client.completions.create(
            model=MODEL,
            prompt="Count: 1, 2, 3,",
            max_tokens=4000,
            extra_body={"ignore_eos": True, "deadline_ms": 300},
        )
    assert error.value.status_code == 504
    assert error.value.code == "deadline_exceeded"
    assert running(served) == 0


def test_cancel(client: openai.OpenAI, served: Served) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True, "request_id": "stop-me"},
    )
    next(iter(stream))
    assert post(served, "/v1/requests/stop-me/cancel", {})[0] == 200
    last: Any = list(stream)[-1]
    assert last.choices[0].finish_reason == "cancelled"
    assert post(served, "/v1/requests/stop-me/cancel", {})[0] == 404


def test_embeddings_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="gives no embeddings"):
        client.embeddings.create(model=MODEL, input="Hi")
