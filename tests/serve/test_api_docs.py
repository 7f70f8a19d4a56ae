"""docs/api.md names every endpoint and every field, and the description is true to the routes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from enginewright.serve.endpoints import ENDPOINTS, Endpoint
from enginewright.serve.openapi import describe

from .conftest import Served

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
BODIES = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.public_path}"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_endpoint_is_documented(endpoint: Endpoint) -> None:
    assert f"| `{name_of(endpoint)}` |" in TEXT
    operation = describe()["paths"][endpoint.public_path][endpoint.method.lower()]
    assert ("200" in operation["responses"]) == (endpoint.answer is not None)


@pytest.mark.parametrize("endpoint", BODIES, ids=name_of)
def test_fields_are_documented(endpoint: Endpoint) -> None:
    assert endpoint.body is not None
    missing = [name for name in endpoint.body.__struct_fields__ if f"`{name}`" not in TEXT]
    assert missing == []


def test_every_reference_leads_somewhere() -> None:
    text = msgspec.json.encode(describe()).decode()
    schemas = describe()["components"]["schemas"]
    for part in text.split('"$ref":"#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas


def test_description_is_served(served: Served) -> None:
    assert served.request("GET", "/openapi.json").json == describe()


def test_a_wrong_method_is_told_all_right_ones(served: Served) -> None:
    reply = served.request("PUT", "/v1/responses/x")
    assert reply.status == 405
    assert {"GET", "DELETE"} <= set(reply.headers["allow"].split(", "))
