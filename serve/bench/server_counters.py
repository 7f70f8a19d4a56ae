"""What a server's own counters say about a run: the difference of `/metrics` after and before."""

from __future__ import annotations

from .http_stream import HttpClient

_COUNTERS = {
    "steps": "enginewright_steps_total",
    "prompt_tokens_computed": "enginewright_computed_prompt_tokens_total",
    "prompt_tokens_cached": "enginewright_cached_prompt_tokens_total",
    "generation_tokens": "enginewright_generation_tokens_total",
    "busy_seconds": "enginewright_busy_seconds_total",
    "preemptions": "vllm:num_preemptions_total",
    "batch_size_sum": "enginewright_batch_size_sum",
    "batch_size_count": "enginewright_batch_size_count",
}


class ServerCounters:
    """Reads `/metrics` twice; a server without it has no counters."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._before: dict[str, float] = {}

    async def start(self) -> None:
        """Note the counters as they are."""
        self._before = await self._read()

    async def deltas(self) -> dict[str, float]:
        """Return how far each counter has moved, and the mean batch size."""
        after = await self._read()
        moved = {name: after[name] - self._before.get(name, 0.0) for name in after}
        rows, steps = moved.pop("batch_size_sum", 0.0), moved.pop("batch_size_count", 0.0)
        if steps:
            moved["mean_batch_size"] = rows / steps
        return moved

    async def _read(self) -> dict[str, float]:
        status, body = await self._client.get("/metrics")
        if status != 200:
            return {}
        sums: dict[str, float] = {}
        for line in body.decode("utf-8", "replace").splitlines():
            if not line.startswith("#") and " " in line:
                name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                sums[name] = sums.get(name, 0.0) + float(value)
        return {short: sums[name] for short, name in _COUNTERS.items() if name in sums}
