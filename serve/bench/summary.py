"""A run's figures as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LATENCIES = {
    "ttft": "first token (TTFT)",
    "tpot": "token after (TPOT)",
    "itl": "between chunks (ITL)",
    "itl_token": "between tokens (ITL)",
    "e2el": "whole answer (E2EL)",
}


def summary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of one run."""
    yield (
        f"{report['completed']} of {report['num_prompts']} requests in {report['duration']:.2f} s: "
        f"{report['request_throughput']:.2f} requests/s, "
        f"{report['output_throughput']:.1f} output tokens/s, "
        f"{report['total_token_throughput']:.1f} tokens/s in all"
    )
    if report["failed"]:
        causes = ", ".join(f"{n} with status {s}" for s, n in report["errors_by_status"].items())
        yield f"{report['failed']} failed: {causes}"
    if "request_goodput" in report:
        yield f"goodput {report['request_goodput']:.2f} requests/s within the objectives"
    ranks = [name[:-8] for name in report if name.startswith("p") and name.endswith("_ttft_ms")]
    heads = "".join(f"{head:>10}" for head in ("mean", "std", *ranks, "max"))
    yield f"{'milliseconds':<22}{heads}"
    for name, text in _LATENCIES.items():
        if f"mean_{name}_ms" in report:
            keys = ("mean", "std", *ranks, "max")
            yield f"{text:<22}" + "".join(f"{report[f'{key}_{name}_ms']:>10.2f}" for key in keys)
    server = report["server"]
    if "mean_batch_size" in server:
        yield (
            f"server: {server['steps']:.0f} steps, mean batch {server['mean_batch_size']:.1f}, "
            f"{server.get('prompt_tokens_cached', 0):.0f} prompt tokens cached, "
            f"{server.get('preemptions', 0):.0f} preemptions"
        )
