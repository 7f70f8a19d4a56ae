"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..service import Service, service_of
from .errors import json_response


async def list_models(request: Request) -> Response:
    """Answer the list of models."""
    return json_response({"object": "list", "data": [_card(service_of(request))]})


async def get_model(request: Request) -> Response:
    """Answer one model's card; ModelNotFoundError for another name."""
    service = service_of(request)
    service.check_model(request.path_params["name"])
    return json_response(_card(service))


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "enginewright",
        "root": service.model_name,
        "parent": None,
        "max_model_len": service.client.info.max_seq_len,
    }
