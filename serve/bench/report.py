"""From outcomes to figures, under the keys of `vllm bench serve` and a few of our own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, median, pstdev
from typing import Any

from .load import Load, Outcome

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def parse_goodput(words: Iterable[str]) -> dict[str, float]:
    """Read `ttft:200 tpot:50 e2el:1000`, milliseconds; raises ValueError."""
    limits: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in ("ttft", "tpot", "e2el") or float(value) <= 0:
            raise ValueError(f"{word!r} is no objective; write ttft:MS, tpot:MS or e2el:MS")
        limits[name] = float(value)
    return limits


def make_report(
    outcomes: Sequence[Outcome],
    duration: float,
    load: Load,
    percentiles: Sequence[float] = PERCENTILES,
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the figures of one run as JSON's types."""
    good = [outcome for outcome in outcomes if not outcome.error]
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    output_tokens = sum(outcome.output_tokens for outcome in good)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "num_prompts": len(outcomes),
        "request_rate": "inf" if math.isinf(load.request_rate) else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": prompt_tokens,
        "total_cached_tokens": sum(outcome.cached_tokens for outcome in good),
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / duration,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (prompt_tokens + output_tokens) / duration,
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": _most_at_once(outcomes),
        "errors_by_status": dict(Counter(str(o.status) for o in outcomes if o.error)),
    }
    if goodput:
        met = sum(_meets(outcome, goodput) for outcome in good)
        report |= {"request_goodput": met / duration, "goodput_objectives_ms": dict(goodput)}
    for name, values in latencies(good).items():
        report |= _spread(name, [value * 1e3 for value in values], percentiles)
    return report


def latencies(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Return every latency of every kind, in seconds.

    `itl` is between chunks, as vLLM has it; `itl_token` spreads a chunk over its tokens, as AIPerf
    has it; `tpot` is a request's mean after its first token.
    """
    found: dict[str, list[float]] = {name: [] for name in ("ttft", "tpot", "itl", "itl_token")}
    found["e2el"] = []
    for outcome in outcomes:
        found["ttft"].append(outcome.first_token)
        found["e2el"].append(outcome.latency)
        if outcome.output_tokens > 1:
            found["tpot"].append(time_per_token(outcome))
        before = outcome.first_token
        for moment, tokens in outcome.chunks[1:]:
            found["itl"].append(moment - before)
            found["itl_token"] += [(moment - before) / tokens] * tokens
            before = moment
    return found


def time_per_token(outcome: Outcome) -> float:
    """Return (latency - ttft) / (output tokens - 1), vLLM's definition."""
    return (outcome.latency - outcome.first_token) / max(outcome.output_tokens - 1, 1)


def percentile(values: Sequence[float], rank: float) -> float:
    """Return a percentile of sorted values, interpolated linearly; NaN of none."""
    if not values:
        return math.nan
    place = rank / 100 * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def _spread(name: str, values: list[float], percentiles: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    values.sort()
    figures = {
        f"mean_{name}_ms": fmean(values),
        f"median_{name}_ms": median(values),
        f"std_{name}_ms": pstdev(values),
        f"max_{name}_ms": values[-1],
    }
    return figures | {f"p{rank:g}_{name}_ms": percentile(values, rank) for rank in percentiles}


def _meets(outcome: Outcome, limits: Mapping[str, float]) -> bool:
    reached = {
        "ttft": outcome.first_token,
        "tpot": time_per_token(outcome) if outcome.output_tokens > 1 else 0.0,
        "e2el": outcome.latency,
    }
    return all(reached[name] * 1e3 <= limit for name, limit in limits.items())


def _busiest_second(outcomes: Iterable[Outcome]) -> float:
    seconds: Counter[int] = Counter()
    for outcome in outcomes:
        for moment, tokens in outcome.chunks:
            seconds[int(outcome.begun + moment)] += tokens
    return float(max(seconds.values(), default=0))


def _most_at_once(outcomes: Iterable[Outcome]) -> int:
    changes = [(o.begun, 1) for o in outcomes] + [(o.begun + o.latency, -1) for o in outcomes]
    most = running = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
