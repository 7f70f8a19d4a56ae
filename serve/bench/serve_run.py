"""One benchmark of a server: warm-up, run or sweep, server metrics, determinism, plots."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import orjson

from ...runtime.errors import InputError
from .datasets import Lengths, Prompt, file_prompts, synthetic_prompts
from .determinism import check_determinism
from .http_stream import HttpClient
from .load import Load, Outcome, RequestOptions, run_load
from .plot import plot_run, plot_sweep
from .report import make_report, parse_goodput
from .server_counters import ServerCounters
from .summary import summary_lines

_AUTO_GAIN = 1.05  # a doubling that brings less than this ends an automatic sweep
_AUTO_MOST = 512


class ServeBench:
    """What the options of `bench serve` ask for."""

    def __init__(self, url: str, *, quiet: bool, **options: Any) -> None:
        """Take the command's options; raises InputError for those that cannot be used."""
        self._options = options
        self._quiet = quiet
        self.failed = False  # whether answers differed, or none came
        key = options["api_key"]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._client = HttpClient(url, headers)
        try:
            self._goodput = parse_goodput(options["goodput"])
            self._percentiles = [float(p) for p in options["metric_percentiles"].split(",")]
        except ValueError as error:
            raise InputError(str(error)) from error
        if options["request_rate"] <= 0 or options["burstiness"] <= 0:
            raise InputError("--request-rate and --burstiness must be above 0")
        self._load = Load(
            options["request_rate"],
            options["burstiness"],
            options["max_concurrency"],
            options["seed"],
        )
        self._sweep = _read_sweep(options["sweep"])

    async def run(self) -> dict[str, Any]:
        """Run it all and return the report. Raises OSError when there is no server."""
        try:
            return await self._run()
        finally:
            await self._client.close()

    async def _run(self) -> dict[str, Any]:
        prompts = self._prompts()
        request = await self._request(prompts)
        warmups = prompts[: self._options["num_warmups"]]
        await run_load(self._client, warmups, request, Load(max_concurrency=1))
        if self._sweep is not None:
            report = await self._run_sweep(prompts, request)
        else:
            report, outcomes = await self._measure(prompts, request, self._load)
            if self._options["plot"]:
                plot_run(outcomes, str(request.model), self._options["plot"])
        if self._options["check_determinism"]:
            concurrency = self._load.max_concurrency or 32
            verdict = await check_determinism(self._client, prompts, request, concurrency)
            report["determinism"] = asdict(verdict) | {"same": verdict.same}
            self.failed |= not verdict.same
            self._say(
                f"determinism: {verdict.compared - len(verdict.different)} of {verdict.compared} "
                f"answers are the same at concurrency 1 and {concurrency}"
                + (f"; {verdict.failed} requests failed" if verdict.failed else "")
            )
        return report

    async def _measure(
        self, prompts: list[Prompt], request: RequestOptions, load: Load
    ) -> tuple[dict[str, Any], list[Outcome]]:
        counters = ServerCounters(self._client)
        await counters.start()
        outcomes, seconds = await run_load(self._client, prompts, request, load)
        report = {
            "label": None,
            "endpoint_type": "openai-chat" if request.chat else "openai",
            "backend": "openai-chat" if request.chat else "openai",
            "model_id": request.model,
            "tokenizer_id": request.model,
            **make_report(outcomes, seconds, load, self._percentiles, self._goodput),
            "server": await counters.deltas(),
        }
        if self._options["save_detailed"]:
            report |= _details(outcomes)
        self.failed |= not report["completed"]
        for line in summary_lines(report):
            self._say(line)
        return report, outcomes

    async def _run_sweep(self, prompts: list[Prompt], request: RequestOptions) -> dict[str, Any]:
        assert self._sweep is not None
        variable, values = self._sweep
        reports: list[dict[str, Any]] = []
        for value in values:
            if variable == "concurrency":
                load = replace(self._load, max_concurrency=int(value))
            else:
                load = replace(self._load, request_rate=value)
            self._say(f"--- {variable} {value:g}")
            report, _ = await self._measure(prompts, request, load)
            reports.append(report)
            if self._options["sweep"] == "auto" and _saturated(reports):
                break
        if self._options["plot"]:
            plot_sweep(reports, variable, self._options["plot"])
        return {"sweep": variable, "runs": reports}

    def _prompts(self) -> list[Prompt]:
        options = self._options
        count, seed = options["num_prompts"], options["seed"]
        path: Path | None = options["dataset"]
        if path is not None:
            return file_prompts(path, count, options["output_len"], seed)
        lengths = Lengths(
            options["input_len"],
            options["output_len"],
            options["prefix_len"],
            options["range_ratio"],
        )
        return synthetic_prompts(count, lengths, seed)

    async def _request(self, prompts: list[Prompt]) -> RequestOptions:
        chat = self._options["chat"] or any(prompt.is_chat for prompt in prompts)
        model = self._options["model"] or await self._served_model()
        extras = not self._options["no_extras"]
        return RequestOptions(model, chat, self._options["temperature"], extras)

    async def _served_model(self) -> str:
        status, body = await self._client.get("/v1/models")
        try:
            return str(orjson.loads(body)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{self._url}/v1/models answers {status} and names no model; check the address and "
                "the key, or give --model"
            ) from error

    def _say(self, line: str) -> None:
        if not self._quiet:
            click.echo(line)


def _read_sweep(text: str | None) -> tuple[str, list[float]] | None:
    if text is None:
        return None
    if text == "auto":
        return "concurrency", [float(2**power) for power in range(_AUTO_MOST.bit_length())]
    variable, _, rest = text.partition("=")
    try:
        values = [float(word) for word in rest.split(",")]
    except ValueError:
        values = []
    if variable not in ("concurrency", "rate") or not values or not all(v > 0 for v in values):
        raise InputError(f"--sweep is {text!r}; write concurrency=1,2,4 or rate=0.5,1,2 or auto")
    return variable, values


def _saturated(reports: list[dict[str, Any]]) -> bool:
    if len(reports) < 2:
        return False
    before, now = (report["output_throughput"] for report in reports[-2:])
    return now < before * _AUTO_GAIN


def _details(outcomes: list[Outcome]) -> dict[str, Any]:
    def gaps(outcome: Outcome) -> list[float]:
        moments = [moment for moment, _ in outcome.chunks]
        return [later - earlier for earlier, later in pairwise(moments)]

    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [o.first_token if o.chunks else math.nan for o in outcomes],
        "itls": [gaps(outcome) for outcome in outcomes],
        "start_times": [outcome.begun for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }
