"""OpenAI's own Python client against the server."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from .conftest import ANSWER, Served, wait_until

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{served.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="Hi", max_tokens=64, logprobs=1)
    assert answer.choices[0].text == ANSWER
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, seed=1, stop=["today"]
    )
    assert [choice.message.content for choice in answer.choices] == [ANSWER.split("today")[0]] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content[0].top_logprobs) == 2


def test_streams(client: openai.OpenAI) -> None:
    text = ""
    for chunk in client.completions.create(model="fake", prompt="Hi", max_tokens=64, stream=True):
        text += chunk.choices[0].text
    assert text == ANSWER
    text, usage = "", None
    for event in client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ):
        usage = event.usage
        if event.choices:
            text += event.choices[0].delta.content or ""
    assert text == ANSWER
    assert usage is not None


def test_abort_in_mid_stream(served: Served, client: openai.OpenAI) -> None:
    served.client.step_seconds = 0.01
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: len(served.client.aborted) == 1)


def test_errors_have_their_classes(served: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert [model.id for model in client.models.list()] == ["fake"]


def test_death_in_mid_stream_raises(served: Served, client: openai.OpenAI) -> None:
    served.client.step_seconds = 0.01
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    served.client.kill()
    with pytest.raises(openai.APIError, match="executor"):
        list(stream)
