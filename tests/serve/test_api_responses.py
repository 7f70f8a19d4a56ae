"""`/v1/responses` and `/v1/messages`: shapes, events, the store."""

from __future__ import annotations

import pytest

from enginewright.serve.response_store import ResponseStore, StoredResponse

from .api import named_events
from .conftest import ANSWER, Served

MESSAGE = {"max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


def test_response_is_kept_until_it_is_deleted(served: Served) -> None:
    made = served.post("/v1/responses", {"input": "Hi", "instructions": "Be brief."}).json
    assert made["status"] == "completed"
    [item] = made["output"]
    assert item["content"][0] == {
        "type": "output_text",
        "text": ANSWER,
        "annotations": [],
        "logprobs": [],
    }
    path = f"/v1/responses/{made['id']}"
    assert served.request("GET", path).json == made
    deleted = {"id": made["id"], "object": "response", "deleted": True}
    assert served.request("DELETE", path).json == deleted
    for method in ("GET", "DELETE"):
        assert served.request(method, path).status == 404


def test_a_response_goes_on_with_an_earlier_one(served: Served) -> None:
    first = served.post("/v1/responses", {"input": "One", "instructions": "Old."}).json
    body = {"input": "Two", "previous_response_id": first["id"], "instructions": "New."}
    second = served.post("/v1/responses", body).json
    alone = [
        {"role": "system", "content": "New."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "Two"},
    ]
    assert (
        second["usage"]["input_tokens"]
        == served.post("/tokenize", {"messages": alone}).json["count"]
    )
    hidden = served.post("/v1/responses", {"input": "x", "store": False}).json
    reply = served.post("/v1/responses", {"input": "y", "previous_response_id": hidden["id"]})
    assert (reply.status, reply.json["error"]["param"]) == (404, "previous_response_id")


def test_streamed_response(served: Served) -> None:
    body = {"input": "Hi", "stream": True, "top_logprobs": 1}
    events = named_events(served.post("/v1/responses", body).body)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == ANSWER
    final = events[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == ANSWER
    streamed = [entry for event in deltas for entry in event["logprobs"]]
    kept = final["output"][0]["content"][0]["logprobs"]
    assert kept[: len(streamed)] == streamed
    assert served.request("GET", f"/v1/responses/{final['id']}").json == final


def test_an_answer_that_was_cut_is_incomplete(served: Served) -> None:
    body = {"input": "Hi", "max_output_tokens": 3}
    made = served.post("/v1/responses", body).json
    assert made["status"] == made["output"][0]["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    events = named_events(served.post("/v1/responses", body | {"stream": True}).body)
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"conversation": "x"}, "conversation"),
        ({"n": 2}, "n"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
    ],
)
def test_wrong_fields_are_named(served: Served, fields: dict[str, object], param: str) -> None:
    reply = served.post("/v1/responses", {"input": "Hi"} | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_format_of_text_becomes_a_constraint(served: Served) -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    made = served.post("/v1/responses", {"input": "Hi", "text": {"format": form}}).json
    assert served.client.submitted[-1].guided.value == '{"type":"object"}'
    assert made["text"]["format"]["schema"] == schema


def test_input_items_make_a_conversation(served: Served) -> None:
    items = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "result"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Ok", "annotations": []}],
        },
    ]
    assert served.post("/v1/responses", {"input": items}).status == 200


def test_message(served: Served) -> None:
    reply = served.post("/v1/messages", MESSAGE | {"system": "Be brief."})
    made = reply.json
    assert made["content"] == [{"type": "text", "text": ANSWER}]
    assert (made["type"], made["role"], made["stop_reason"]) == ("message", "assistant", "end_turn")
    count = served.post(
        "/v1/messages/count_tokens",
        {"messages": MESSAGE["messages"], "system": [{"type": "text", "text": "Be brief."}]},
    )
    assert made["usage"]["input_tokens"] == count.json["input_tokens"]


def test_message_ends(served: Served) -> None:
    made = served.post("/v1/messages", MESSAGE | {"stop_sequences": ["today"]}).json
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", "today")
    made = served.post("/v1/messages", MESSAGE | {"max_tokens": 2}).json
    assert made["stop_reason"] == "max_tokens"


def test_streamed_message(served: Served) -> None:
    events = named_events(served.post("/v1/messages", MESSAGE | {"stream": True}).body)
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == ANSWER
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_a_last_message_of_the_assistant_is_continued(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, I"}]
    assert served.post("/v1/messages", MESSAGE | {"messages": messages}).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"stop_sequences": ["a"], "stop": ["b"]}, "stop"),
    ],
)
def test_wrong_message_fields_are_named(
    served: Served, fields: dict[str, object], param: str
) -> None:
    reply = served.post("/v1/messages", MESSAGE | fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert reply.json["type"] == "error"


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=1000)
    for number in range(5):
        store.put(str(number), StoredResponse({"n": number}, ()))
    assert [store.get(str(number)) is not None for number in range(5)] == [False] * 2 + [True] * 3
    assert store.get("2") is not None  # the latest used stays
    store.put("5", StoredResponse({}, ()))
    assert store.get("2") is not None
    assert store.get("3") is None
    store.put("big", StoredResponse({"text": "x" * 2000}, ()))
    assert store.get("big") is None
    store.put("half", StoredResponse({"text": "x" * 980}, ()))
    assert len(store) == 1
    assert store.remove("half")
    assert not store.remove("half")
    assert store._bytes == 0
