"""Endpoints over a real socket: answers, streams, and what each field does."""

import pytest

from .conftest import ANSWER, Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}


def test_completion(served: Served) -> None:
    reply = served.post("/v1/completions", {"prompt": "Hi", "model": "fake", "max_tokens": 64})
    assert reply.status == 200
    body = reply.json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (ANSWER, "stop", None)
    tokens = len(served.tokenizer.encode(ANSWER)) + 1
    prompt = len(served.tokenizer.encode("Hi"))
    assert body["usage"]["completion_tokens"] == tokens
    assert body["usage"]["total_tokens"] == tokens + prompt


def test_completion_length_is_16_by_default(served: Served) -> None:
    body = served.post("/v1/completions", {"prompt": "Hi"}).json
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", ["Hi", [5, 6], ["Hi", "Ho"], [[5, 6], [7]], ["Hi", [7]]])
def test_forms_of_a_prompt(served: Served, prompt: object) -> None:
    body = {"prompt": prompt, "n": 2, "max_tokens": 64, "seed": 7}
    choices = served.post("/v1/completions", body).json["choices"]
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice["index"] for choice in choices] == list(range(2 * prompts))
    assert {choice["text"] for choice in choices} == {ANSWER}
    assert [params.seed for params in served.client.submitted] == [7, 8] * prompts


def test_streamed_completion_joins_to_the_whole(served: Served) -> None:
    body = {"prompt": ["a", "b"], "stream": True, "max_tokens": 64}
    reply = served.post("/v1/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    texts = {0: "", 1: ""}
    for event in reply.events:
        assert "usage" not in event
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: ANSWER, 1: ANSWER}


def test_chat(served: Served) -> None:
    body = served.post("/v1/chat/completions", CHAT).json
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_chat_without_a_limit_takes_what_fits(served: Served) -> None:
    served.post("/v1/chat/completions", {"messages": CHAT["messages"]})
    assert served.client.submitted[0].max_tokens is None
    served.post("/v1/chat/completions", CHAT | {"max_completion_tokens": 3})
    assert served.client.submitted[1].max_tokens == 3


def test_streamed_chat_with_usage(served: Served) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    *events, last = served.post("/v1/chat/completions", body).events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2 * (len(served.tokenizer.encode(ANSWER)) + 1)
    assert {event["usage"] for event in events} == {None}
    for index in (0, 1):
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == ANSWER
        assert [choice["finish_reason"] for choice in mine][-2:] == [None, "stop"]
    assert len({event["id"] for event in [*events, last]}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_across_tokens_ends_and_aborts(served: Served, stream: bool) -> None:
    body = CHAT | {"stop": ["😀, h", "unseen"], "stream": stream}
    reply = served.post("/v1/chat/completions", body)
    if stream:
        choices = [event["choices"][0] for event in reply.events]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        final = choices[-1]
    else:
        final = reply.json["choices"][0]
        text = final["message"]["content"]
    assert text == "Hello wörld "
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", "😀, h")


def test_stop_string_may_be_shown(served: Served) -> None:
    body = CHAT | {"stop": "wör", "include_stop_str_in_output": True}
    choice = served.post("/v1/chat/completions", body).json["choices"][0]
    assert choice["message"]["content"] == "Hello wör"


def test_stop_token_is_told(served: Served) -> None:
    token = served.tokenizer.encode(ANSWER)[3]
    body = CHAT | {"stop_token_ids": [token], "ignore_eos": True}
    choice = served.post("/v1/chat/completions", body).json["choices"][0]
    assert choice["stop_reason"] == token
    assert served.client.submitted[0].eos_token_ids == ()


def test_min_tokens_holds_stop_strings_off(served: Served) -> None:
    body = CHAT | {"stop": "o", "min_tokens": 10}
    content = served.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
    assert content.startswith("Hello")


def test_every_sampling_field_reaches_the_executor(served: Served) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
        "min_tokens": 2,
        "seed": 11,
    }
    served.post("/v1/chat/completions", CHAT | fields | {"logit_bias": {"5": -3}})
    [params] = served.client.submitted
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {5: -3.0}


def test_chat_logprobs(served: Served) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    whole = served.post("/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"]
    ids = served.tokenizer.encode(ANSWER)
    raw = b"".join(bytes(entry["bytes"]) for entry in whole[: len(ids)])
    assert raw.decode() == ANSWER
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole)
    assert whole[0]["logprob"] == -0.5
    events = served.post("/v1/chat/completions", body | {"stream": True}).events
    streamed = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in streamed if part for entry in part["content"]] == whole


def test_completion_logprobs(served: Served) -> None:
    body = {"prompt": "Hi", "logprobs": 1, "max_tokens": 9}
    whole = served.post("/v1/completions", body).json["choices"][0]["logprobs"]
    assert whole["token_logprobs"] == [-0.5] * 9
    assert whole["text_offset"][:2] == [0, len(whole["tokens"][0])]
    events = served.post("/v1/completions", body | {"stream": True}).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    for key in whole:
        assert [item for part in parts if part for item in part[key]] == whole[key]


def test_content_parts_and_developer_role(served: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "c"}, {"role": "user", "content": parts}]
    assert served.post("/v1/chat/completions", CHAT | {"messages": messages}).status == 200


def test_models(served: Served) -> None:
    body = served.request("GET", "/v1/models").json
    assert [card["id"] for card in body["data"]] == ["fake"]
    assert served.request("GET", "/v1/models/fake").json == body["data"][0]
    assert served.request("GET", "/v1/models/other").status == 404


def test_health_version_and_death(served: Served) -> None:
    assert served.request("GET", "/health").status == 200
    assert "version" in served.request("GET", "/version").json
    served.client.kill()
    assert served.request("GET", "/health").status == 503
    reply = served.post("/v1/chat/completions", CHAT)
    assert (reply.status, reply.json["error"]["code"]) == (503, "executor_died")
    assert "retry-after" in reply.headers


def test_metrics(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
    served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 0})
    text = served.request("GET", "/metrics").body.decode()
    labels = '{engine="0",model_name="fake"'
    for line in (
        f"enginewright_generation_tokens_total{labels}}} 4.0",
        f"vllm:generation_tokens_total{labels}}} 4.0",
        f"vllm:prompt_tokens_total{labels}}}",
        f"vllm:time_to_first_token_seconds_count{labels}}} 1.0",
        f"vllm:inter_token_latency_seconds_count{labels}}} 3.0",
        f"vllm:e2e_request_latency_seconds_count{labels}}} 1.0",
        f"vllm:request_queue_time_seconds_count{labels}}} 1.0",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake"} 1.0',
        'enginewright_request_error_total{code="invalid_request"',
        'enginewright_num_requests_running{engine="0",model_name="fake"} 0.0',
        'vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0',
        'enginewright_kv_blocks_free{engine="0",model_name="fake"} 64.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.0',
        'enginewright_batch_size_bucket{engine="0",le="2.0",model_name="fake"} 4.0',
        'enginewright_rejected_requests_total{cause="overloaded",engine="0",model_name="fake"} 2.0',
        'enginewright_up{engine="0",model_name="fake"} 1.0',
    ):
        assert line in text
    served.client.kill()
    assert "enginewright_up" in served.request("GET", "/metrics").body.decode()
