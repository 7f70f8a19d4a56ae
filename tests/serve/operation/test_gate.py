"""Keys, limits, origins and the drain, as a client sees them."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from enginewright.serve.operation.config import ServeConfig
from enginewright.serve.operation.keys import KeyRing, KeyRule
from tests.serve.conftest import Reply, Served, wait_until
from tests.serve.fake_client import FakeClient

from .conftest import Operate

RING = KeyRing({"right": KeyRule("right"), "small": KeyRule("small", max_in_flight=1)})
HI = {"prompt": "Hi", "max_tokens": 3}


def send(served: Served, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    raw = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, raw, named)
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    reply = Reply(response.status, found, response.read())
    connection.close()
    return reply


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "/dashboard/state"),
        ("GET", "/health/generate"),
        ("GET", "/nothing/here"),
    ],
)
def test_a_missing_or_wrong_key_gets_401(operate: Operate, method: str, path: str) -> None:
    with operate(ring=RING) as served:
        missing = send(served, method, path, HI)
        assert missing.status == 401
        assert missing.headers["www-authenticate"] == "Bearer"
        error = missing.json["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "Authorization: Bearer" in error["message"]
        for headers in ({"authorization": "Bearer wrong"}, {"x_api_key": "wrong"}):
            wrong = send(served, method, path, HI, **headers)
            assert (wrong.status, wrong.json["error"]["code"]) == (401, "invalid_api_key")
        assert served.client.submitted == []


def test_the_right_key_opens(operate: Operate) -> None:
    with operate(ring=RING) as served:
        for headers in (
            {"authorization": "Bearer right"},
            {"authorization": "bearer  right"},
            {"x_api_key": "right"},
        ):
            assert send(served, "POST", "/v1/completions", HI, **headers).status == 200
        assert send(served, "GET", "/metrics", authorization="Bearer right").status == 200


def test_probes_and_the_page_need_no_key(operate: Operate) -> None:
    with operate(ring=RING) as served:
        for path in ("/health", "/health/ready", "/", "/dashboard/app.js", "/dashboard/style.css"):
            assert send(served, "GET", path).status == 200


def test_requests_in_flight_of_a_key(operate: Operate, fake: FakeClient) -> None:
    fake.gate.clear()
    with operate(ring=RING) as served:
        first = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        key = {"authorization": "Bearer small"}
        first.request("POST", "/v1/completions", json.dumps(HI), key)
        wait_until(lambda: len(fake.submitted) == 1)
        second = send(served, "POST", "/v1/completions", HI, **key)
        assert (second.status, second.headers["retry-after"]) == (429, "1")
        assert second.json["error"]["code"] == "rate_limit_exceeded"
        assert second.json["error"]["type"] == "rate_limit_error"
        fake.gate.set()
        assert first.getresponse().status == 200
        first.close()
        wait_until(lambda: served.service.traffic.in_flight == 0)
        assert send(served, "POST", "/v1/completions", HI, **key).status == 200


def test_refusals_of_the_gate_have_anthropic_s_shape_for_its_clients(
    operate: Operate, fake: FakeClient
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    fake.gate.clear()
    with operate(ring=RING) as served:
        missing = send(served, "POST", "/v1/messages", body)
        assert (missing.status, missing.json["type"]) == (401, "error")
        assert missing.json["error"]["type"] == "authentication_error"
        first = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        first.request("POST", "/v1/messages", json.dumps(body), {"x-api-key": "small"})
        wait_until(lambda: len(fake.submitted) == 1)
        limited = send(served, "POST", "/v1/messages", body, x_api_key="small")
        assert (limited.status, limited.json["type"]) == (429, "error")
        assert limited.json["error"]["type"] == "rate_limit_error"
        served.service.traffic.draining = True
        stopping = send(served, "POST", "/v1/messages", body, x_api_key="right")
        assert (stopping.status, stopping.json["type"]) == (503, "error")
        assert stopping.json["error"]["type"] == "overloaded_error"
        wrong_method = send(served, "GET", "/v1/messages", x_api_key="right")
        assert (wrong_method.status, wrong_method.json["type"]) == (405, "error")
        fake.gate.set()
        first.getresponse().read()
        first.close()


def test_a_key_is_a_tenant_by_its_name(operate: Operate, fake: FakeClient) -> None:
    """The executor shares fairly between tenants; it learns the name and never the key."""
    ring = KeyRing({"secret-1": KeyRule("alice"), "secret-2": KeyRule("bob")})
    with operate(ring=ring) as served:
        for key in ("secret-1", "secret-2"):
            answered = send(served, "POST", "/v1/completions", HI, authorization=f"Bearer {key}")
            assert answered.status == 200
        assert [params.tenant for params in fake.submitted] == ["alice", "bob"]
        metrics = send(served, "GET", "/metrics", authorization="Bearer secret-1")
        assert b"secret-" not in metrics.body
    with operate() as served:
        assert send(served, "POST", "/v1/completions", HI).status == 200
        assert fake.submitted[-1].tenant is None


def test_while_it_drains_new_work_gets_503(operate: Operate) -> None:
    with operate() as served:
        served.service.traffic.draining = True
        refused = send(served, "POST", "/v1/completions", HI)
        assert (refused.status, refused.json["error"]["code"]) == (503, "server_stopping")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert send(served, "GET", "/health/ready").status == 503
        assert send(served, "GET", "/health").status == 200
        assert "enginewright_draining{" in send(served, "GET", "/metrics").body.decode()


def test_origins(operate: Operate) -> None:
    config = ServeConfig(cors_origin=("https://a.example",))
    with operate(config, ring=RING) as served:
        asked = {
            "origin": "https://a.example",
            "access_control_request_method": "POST",
            "access_control_request_headers": "authorization",
        }
        preflight = send(served, "OPTIONS", "/v1/completions", **asked)
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        refused = send(served, "POST", "/v1/completions", HI, origin="https://a.example")
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        other = send(served, "GET", "/health", origin="https://b.example")
        assert "access-control-allow-origin" not in other.headers


def test_bodies_and_contexts_have_limits(operate: Operate) -> None:
    with operate(ServeConfig(max_body_size=1000, max_context=10)) as served:
        large = send(served, "POST", "/v1/completions", {"prompt": "x" * 2000})
        assert (large.status, large.json["error"]["code"][:15]) in (
            (413, "content_too_lar"),
            (413, "request_entity_"),
        )
        long = send(served, "POST", "/v1/completions", {"prompt": [5] * 10})
        assert long.status == 400
        assert long.json["error"]["code"] == "context_length_exceeded"
        body = {"prompt": [5] * 4, "max_tokens": 50, "ignore_eos": True}
        cut = send(served, "POST", "/v1/completions", body)
        assert cut.json["usage"]["total_tokens"] == 10


def test_no_dashboard(operate: Operate) -> None:
    with operate(ServeConfig(dashboard=False)) as served:
        assert send(served, "GET", "/").status == 404
        assert send(served, "GET", "/dashboard/state").status == 404


def test_request_ids_go_in_and_out(operate: Operate) -> None:
    with operate() as served:
        given = send(served, "POST", "/v1/completions", HI, x_request_id="mine-1")
        assert given.headers["x-request-id"] == "mine-1"
        made = send(served, "GET", "/health").headers["x-request-id"]
        assert len(made) == 32
        odd = send(served, "GET", "/health", x_request_id="x" * 500)
        assert len(odd.headers["x-request-id"]) == 32


def test_config_checks(tmp_path: Path) -> None:
    from enginewright.runtime.errors import InputError

    with pytest.raises(InputError, match="ssl-certfile"):
        ServeConfig(ssl_keyfile=tmp_path)
    with pytest.raises(InputError, match="not a file"):
        ServeConfig(ssl_certfile=tmp_path / "none")
    with pytest.raises(InputError, match="every site"):
        ServeConfig(cors_origin=("*",), cors_credentials=True)
    with pytest.raises(InputError, match="empty"):
        ServeConfig(api_key=(" ",))
