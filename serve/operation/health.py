"""`/health`, `/health/ready` and `/health/generate`: lives, takes requests, gives tokens."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...executor.sampling import SamplingParams
from ...runtime.errors import EnginewrightError
from ..openai.errors import RETRY_AFTER_SECONDS, body_of, error_body, json_response
from ..service import Service, service_of

_PATIENCE_SECONDS = 0.5  # that a probe waits for the executor; a long step is no illness
_GENERATE_SECONDS = 30.0


async def health(request: Request) -> Response:
    """Answer 200 while the executor process lives and answers, 503 otherwise."""
    trouble = await _trouble(service_of(request))
    return trouble or json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    """Answer 200 while new requests are taken, 503 while the server drains or is ill."""
    service = service_of(request)
    if service.traffic.draining:
        return _ill("the server is stopping; try again elsewhere", "server_stopping")
    return await _trouble(service) or json_response({"status": "ready"})


async def generate(request: Request) -> Response:
    """Answer 200 after a real token (or vector), with its time; 503 if none has come in 30 s."""
    service = service_of(request)
    begun = time.perf_counter()
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)
    generation = service.generation([[0]], params, embeds=service.embeds)
    try:
        async with asyncio.timeout(_GENERATE_SECONDS):
            await generation.start()
            async for _ in generation.batches():
                pass
    except TimeoutError:
        return _ill(f"no token has come in {_GENERATE_SECONDS:.0f} s", "generation_timeout")
    except EnginewrightError as error:
        return json_response(body_of(error), 503)
    finally:
        generation.abort()
    return json_response({"status": "ok", "seconds": round(time.perf_counter() - begun, 6)})


async def _trouble(service: Service) -> Response | None:
    """Return the answer that tells of a dead or hung executor; None if it is well."""
    if not service.client.alive:
        return _ill("the executor process has ended; restart the server", "executor_died")
    await asyncio.to_thread(service.probe.ask, _PATIENCE_SECONDS)
    if not service.client.alive:
        return _ill("the executor process has ended; restart the server", "executor_died")
    if service.probe.hung:
        seconds = service.probe.silent_seconds
        message = f"the executor has not answered for {seconds:.0f} s; restart the server"
        return _ill(message, "executor_hung")
    return None


def _ill(message: str, code: str) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
    return json_response(error_body(503, message, None, code), 503, headers)


HEALTH_ROUTES = [
    Route("/health", health),
    Route("/health/ready", ready),
    Route("/health/generate", generate),
]
