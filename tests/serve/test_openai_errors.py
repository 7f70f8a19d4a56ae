"""What a client gets for what cannot be answered; the server lives on."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginewright.executor.messages import ErrorInfo, TokenOutput
from enginewright.runtime.errors import RequestError
from enginewright.serve.openai.chat_types import ChatRequest
from enginewright.serve.openai.types import CompletionRequest, decode_body

from .conftest import Served, wait_until
from .fake_client import MAX_SEQ_LEN

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def check_shape(body: object) -> dict[str, object]:
    assert isinstance(body, dict)
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert isinstance(error["message"], str)
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "many"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 10**30),
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", 10**6),
        ("n", True),
        ("seed", 2**70),
        ("stop", [1]),
        ("stop", [""]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 1000}),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("min_tokens", 99),
        ("logprobs", 2),
        ("top_logprobs", 3),
        ("messages", []),
        ("messages", "Hi"),
        ("messages", [{"role": "robot", "content": "Hi"}]),
        ("messages", [{"content": "Hi"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"type": "function"}]}]),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "regex"}),
        ("guided_choice", []),
        ("timeout", 0),
        ("deadline_ms", -5),
        ("queue_timeout", -1),
        ("priority", 2**40),
        ("bad_words", [""]),
        ("request_id", "two words"),
        ("stream_options", {"include_usage": True}),
        ("chat_template_kwargs", {"messages": []}),
    ],
)
def test_bad_field_is_named(served: Served, field: str, value: object) -> None:
    reply = served.post(CHAT, {"messages": MESSAGES, "max_tokens": 8} | {field: value})
    error = check_shape(reply.json)
    assert (reply.status, error["param"]) == (400, field)
    assert error["type"] == "invalid_request_error"
    assert served.client.submitted == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [1, "a"]),
        ("prompt", [[1.5]]),
        ("prompt", [True]),
        ("prompt", None),
        ("prompt", ["a"] * 200),
        ("logprobs", 21),
        ("n", 0),
        ("best_of", 0),
        ("best_of", 1000),
        ("suffix", "x"),
        ("suffix", {"a": 1}),
    ],
)
def test_bad_completion_field_is_named(served: Served, field: str, value: object) -> None:
    reply = served.post(TEXT, {"prompt": "Hi"} | {field: value})
    assert (reply.status, check_shape(reply.json)["param"]) == (400, field)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "temperature": 1e999}',
        b'{"prompt": "Hi", "temperature": -Infinity}',
        b'{"prompt": "Hi", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 50_000,
        b'{"prompt": "Hi", "other": ' + b'{"a":' * 30_000,
    ],
)
def test_malformed_bodies(served: Served, body: bytes) -> None:
    for path in (TEXT, CHAT):
        reply = served.post(path, body)
        assert reply.status == 400
        check_shape(reply.json)
    assert served.post(TEXT, {"prompt": "Hi"}).status == 200


def test_unknown_model(served: Served) -> None:
    reply = served.post(CHAT, {"messages": MESSAGES, "model": "gpt-9"})
    error = check_shape(reply.json)
    assert (reply.status, error["param"], error["code"]) == (404, "model", "model_not_found")


def test_unknown_route_and_method(served: Served) -> None:
    reply = served.request("GET", "/v2/nothing")
    assert (reply.status, check_shape(reply.json)["code"]) == (404, "not_found")
    reply = served.request("GET", CHAT)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    check_shape(reply.json)


def test_body_too_large(served: Served) -> None:
    reply = served.post(TEXT, {"prompt": "x" * 300_000})
    assert reply.status == 413
    check_shape(reply.json)


@pytest.mark.parametrize("stream", [False, True])
def test_refusal_of_the_executor_comes_before_the_stream(served: Served, stream: bool) -> None:
    reply = served.post(TEXT, {"prompt": [1] * MAX_SEQ_LEN, "stream": stream})
    error = check_shape(reply.json)
    assert (reply.status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "prompt"


def test_what_is_refused_has_not_finished(served: Served) -> None:
    """Metrics count a refusal as one, and not as an answer that ended with an error."""
    assert served.post(TEXT, {"prompt": [1] * MAX_SEQ_LEN}).status == 400
    text = served.request("GET", "/metrics").body.decode()
    assert 'code="context_length_exceeded"' in text
    finished = [one for one in text.splitlines() if 'finished_reason="error"' in one]
    assert all(float(line.split()[-1]) == 0 for line in finished)


@pytest.mark.parametrize("stream", [False, True])
def test_full_queue_is_429(served: Served, stream: bool) -> None:
    def refuse(request_id: str, prompt: object, params: object, sink: object) -> None:
        error = ErrorInfo("the queue is full", "overloaded", 429)
        assert callable(sink)
        sink(TokenOutput(request_id, finish_reason="error", error=error))

    served.client.submit = refuse  # type: ignore[method-assign]
    reply = served.post(CHAT, {"messages": MESSAGES, "stream": stream})
    assert (reply.status, check_shape(reply.json)["code"]) == (429, "overloaded")
    assert int(reply.headers["retry-after"]) > 0


def test_a_bug_gives_500_without_its_traceback(served: Served) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret")

    served.client.submit = fail  # type: ignore[method-assign]
    reply = served.post(CHAT, {"messages": MESSAGES})
    error = check_shape(reply.json)
    assert (reply.status, error["type"]) == (500, "server_error")
    assert "secret" not in str(error)


def test_death_in_mid_stream_is_an_event(served: Served) -> None:
    served.client.step_seconds = 0.01
    with served.open_raw(
        TEXT, {"prompt": "Hi", "stream": True, "max_tokens": 500, "ignore_eos": True}
    ) as raw:
        received = raw.recv(65536)
        served.client.kill()
        while b"[DONE]" not in received:
            received += raw.recv(65536)
    assert b'"code":"executor_died"' in received


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_when_the_server_stops_is_told(served: Served, stream: bool) -> None:
    served.client.step_seconds = 0.01
    body = {"prompt": "Hi", "stream": stream, "max_tokens": 500, "ignore_eos": True}
    with served.open_raw(TEXT, body) as raw:
        wait_until(lambda: len(served.client.submitted) == 1)
        received = raw.recv(65536) if stream else b""
        served.loop.call_soon_threadsafe(served.service.stop)
        while b"server_stopping" not in received:
            received += raw.recv(65536)
    assert (b"HTTP/1.1 200" in received) == stream
    wait_until(lambda: len(served.client.aborted) == 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted(set(ChatRequest.__struct_fields__) | set(CompletionRequest.__struct_fields__))


@settings(max_examples=300, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
def test_fuzzed_fields_parse_or_are_refused(fields: dict[str, object]) -> None:
    for kind, base in (
        (ChatRequest, {"messages": MESSAGES}),
        (CompletionRequest, {"prompt": "Hi"}),
    ):
        body = json.dumps(base | fields).encode()
        with suppress(RequestError):
            decode_body(body, kind).sampling({}, 8, None)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_fuzzed_requests_get_an_answer(served: Served, fields: dict[str, object]) -> None:
    for path, base in ((CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": "Hi"})):
        reply = served.post(path, base | {"max_tokens": 4} | fields)
        assert reply.status in (200, 400, 404)
        if reply.status != 200:
            check_shape(reply.json)
