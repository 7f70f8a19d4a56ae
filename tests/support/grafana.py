"""The Grafana dashboard of docs/grafana.json: one list of panels, laid out in rows."""

from __future__ import annotations

import json
from typing import Any

_MODEL = 'model_name=~"$model"'
_WIDTH, _HEIGHT = 8, 8
_QUANTILES = "quantiles"  # instead of an expression: three of them, of the histogram named

# Title, unit, and (expression, legend) of each line.
_PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Tokens a second",
        "short",
        (
            ("rate(enginewright_generation_tokens_total{M}[$__rate_interval])", "generated"),
            ("rate(enginewright_computed_prompt_tokens_total{M}[$__rate_interval])", "prompt"),
            ("rate(enginewright_cached_prompt_tokens_total{M}[$__rate_interval])", "cached"),
        ),
    ),
    (
        "Sequences",
        "short",
        (
            ("enginewright_num_requests_running{M}", "running"),
            ("enginewright_num_requests_context{M}", "in context"),
            ("enginewright_num_requests_waiting{M}", "waiting"),
            ("enginewright_http_requests_in_flight{M}", "HTTP requests"),
        ),
    ),
    (
        "KV cache",
        "percentunit",
        (
            ("enginewright_kv_cache_usage_perc{M}", "blocks used"),
            ("enginewright_kv_fragmentation{M}", "empty places in used blocks"),
        ),
    ),
    ("Time to first token", "s", ((_QUANTILES, "enginewright_time_to_first_token_seconds"),)),
    ("Between tokens", "s", ((_QUANTILES, "enginewright_inter_token_latency_seconds"),)),
    ("Whole answer", "s", ((_QUANTILES, "enginewright_e2e_request_latency_seconds"),)),
    ("In the queue", "s", ((_QUANTILES, "enginewright_request_queue_time_seconds"),)),
    ("Step", "s", ((_QUANTILES, "enginewright_step_seconds"),)),
    ("Batch size", "short", ((_QUANTILES, "enginewright_batch_size"),)),
    (
        "Answers by how they ended",
        "reqps",
        (
            (
                "sum by (finished_reason) "
                "(rate(enginewright_request_success_total{M}[$__rate_interval]))",
                "{{finished_reason}}",
            ),
        ),
    ),
    (
        "Errors by status",
        "reqps",
        (
            (
                "sum by (http_code, code) "
                "(rate(enginewright_request_error_total{M}[$__rate_interval]))",
                "{{http_code}} {{code}}",
            ),
            (
                "sum by (cause) (rate(enginewright_rejected_requests_total{M}[$__rate_interval]))",
                "refused: {{cause}}",
            ),
        ),
    ),
    (
        "Busy",
        "percentunit",
        (
            ("rate(enginewright_busy_seconds_total{M}[$__rate_interval])", "steps"),
            ("enginewright_up{M}", "up"),
            ("enginewright_draining{M}", "draining"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "enginewright",
        "uid": "enginewright",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "model",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "$source"},
                    "query": "label_values(enginewright_up, model_name)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(_PANELS)],
    }


def expressions() -> list[str]:
    """Return every expression of the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def _panel(
    number: int, title: str, unit: str, lines: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    if lines[0][0] == _QUANTILES:
        lines = tuple(
            (_quantile(lines[0][1], rank), f"p{rank * 100:g}") for rank in (0.5, 0.9, 0.99)
        )
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "$source"},
        "gridPos": {
            "x": number % 3 * _WIDTH,
            "y": number // 3 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": expression.replace("{M}", "{" + _MODEL + "}"),
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(lines)
        ],
    }


def _quantile(name: str, rank: float) -> str:
    return f"histogram_quantile({rank}, sum by (le) (rate({name}_bucket{{M}}[$__rate_interval])))"


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
