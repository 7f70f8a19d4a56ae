"""The page's files, and the one address its numbers come from."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import dashboard
from ..openai.errors import json_response
from ..service import service_of

# Nothing from other hosts, nothing inline: what a model writes can never run as code.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard/style.css": ("style.css", "text/css; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dashboard/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/dashboard/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
}
STATIC_PATHS = frozenset(_FILES)


async def page_file(request: Request) -> Response:
    """Answer one file of the page."""
    name, media_type = _FILES[request.url.path]
    headers = {
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(_read(name), headers=headers, media_type=media_type)


async def state(request: Request) -> Response:
    """Answer what the page shows; one question to the executor, whoever else asks."""
    page = service_of(request).page
    return json_response(await asyncio.to_thread(page.state))


@cache
def _read(name: str) -> bytes:
    return files(dashboard).joinpath(name).read_bytes()


DASHBOARD_ROUTES = [
    *(Route(path, page_file) for path in _FILES),
    Route("/dashboard/state", state),
]
