"""The public `openai` client against the real model, served by the real command."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from .conftest import MODEL, Served

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Say hello in one short sentence."}
]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def metric(served: Served, name: str) -> float:
    """Read one sample of /metrics."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    values = [line.split()[-1] for line in lines if line.split("{")[0].split(" ")[0] == name]
    assert values, f"no metric {name}"
    return sum(float(value) for value in values)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_completion_is_repeatable(client: openai.OpenAI) -> None:
    answers = [
        client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=12, temperature=0, logprobs=3
        )
        for _ in range(2)
    ]
    first, second = answers
    assert first.choices[0].text == second.choices[0].text
    assert first.choices[0].logprobs == second.choices[0].logprobs
    assert first.usage is not None
    assert first.usage.completion_tokens == 12
    logprobs = first.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)


def test_chat_streams_what_it_answers_at_once(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=24, temperature=0
    )
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    streamed = chunks[-1].usage
    assert streamed is not None
    assert whole.usage is not None
    assert streamed.prompt_tokens == whole.usage.prompt_tokens
    assert streamed.completion_tokens == whole.usage.completion_tokens
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason


def test_seeds_and_choices(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        reply = client.completions.create(
            model=MODEL, prompt="A story:", max_tokens=16, temperature=1, seed=seed, n=3
        )
        return [choice.text for choice in reply.choices]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)
    assert len(set(ask(1))) == 3


def test_stop_string_across_tokens(client: openai.OpenAI) -> None:
    plain = client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=24, temperature=0
    )
    text = plain.choices[0].text
    stop = text[7:12]  # lies across token borders
    reply = client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=24, temperature=0, stop=[stop]
    )
    assert reply.choices[0].text == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"


def test_chat_logprobs(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, temperature=0, logprobs=True, top_logprobs=4
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
    for entry in logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0]  # greedy


def test_abort_in_mid_stream_gives_the_blocks_back(client: openai.OpenAI, served: Served) -> None:
    used = metric(served, "enginewright_kv_blocks_used")
    stream = client.completions.create(
        model=MODEL,
        prompt="Count: 1, 2, 3,",
        max_tokens=4000,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for number, _ in enumerate(stream):
        if number == 5:
            break
    assert metric(served, "enginewright_kv_blocks_used") > used
    stream.close()
    deadline = time.monotonic() + 10
    while metric(served, "enginewright_num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(served, "enginewright_num_requests_running") == 0
    assert metric(served, "enginewright_kv_blocks_used") == used


def test_bad_requests_are_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=MODEL, prompt="x " * 9000, max_tokens=8)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="x")
