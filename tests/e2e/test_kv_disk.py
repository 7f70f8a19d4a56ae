"""The disk tier over an engine: the same answers from files, also after a restart."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from enginewright import LLM, SamplingParams
from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.runtime.artifact import open_engine
from tests.e2e.conftest import Served, rounding, start_server, stop_server
from tests.e2e.test_executor_bits import PROMPTS, EngineRun, same

PROMPT = "The lighthouse keeper wrote in his diary that the sea was calm. " * 12


def run_with_disk(folder: Path, disk: Path, num_blocks: int = 64) -> EngineRun:
    config = ExecutorConfig(kv_cache_disk=str(disk), kv_cache_disk_size=1 << 30)
    return EngineRun(folder, num_blocks, False, config)


def test_answers_from_disk_have_the_bits_of_cold_ones(engine: Path, tmp_path: Path) -> None:
    cold = EngineRun(engine, 64, False, ExecutorConfig())
    expected = cold.answers(PROMPTS, 20)
    cold.close()
    for life in range(3):
        run = run_with_disk(engine, tmp_path)
        same(engine, run.answers(PROMPTS, 20), expected)
        gauges = run.executor.scheduler.report.gauges()
        assert (gauges["disk_loaded_blocks"] > 0) == (life > 0)
        assert gauges["disk_damaged_files"] == (1 if life == 2 else 0)
        run.close()
        if life == 1:  # a bit of the first block that all but one prompt share
            files = sorted(tmp_path.rglob("*.kv"), key=lambda path: path.stat().st_mtime_ns)
            data = bytearray(files[-1].read_bytes())
            data[-7] ^= 1
            files[-1].write_bytes(data)
            block = open_engine(engine).manifest.kv.block_bytes
            assert {path.stat().st_size for path in files} == {block + 112}


def test_more_than_memory_holds_comes_back_with_the_same_bits(engine: Path, tmp_path: Path) -> None:
    run = run_with_disk(engine, tmp_path, num_blocks=5)
    first = run.answers(PROMPTS, 20)
    same(engine, run.answers(PROMPTS, 20), first)
    assert run.executor.scheduler.report.gauges()["disk_loaded_blocks"] > 0
    run.close()


def ask(server: Served) -> tuple[str, int]:
    """Return the answer to the prompt, and its cached tokens."""
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "text/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["text"], cached


def metric(server: Served, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(name)))


def test_a_server_that_starts_again_finds_its_prompts(engine: Path, tmp_path: Path) -> None:
    options = ("--kv-cache-disk", str(tmp_path / "kv"), "--kv-cache-disk-size", "256MB")
    server = start_server(engine, *options)
    cold, cached = ask(server)
    assert cached == 0
    assert ask(server)[0] == cold
    assert stop_server(server) == 0
    server = start_server(engine, *options)
    again, cached = ask(server)
    assert again == cold
    assert cached >= 96
    assert metric(server, "enginewright_kv_disk_loaded_blocks_total") == cached // 32
    assert metric(server, "enginewright_kv_disk_cached_tokens_total") == cached
    assert metric(server, "enginewright_kv_disk_damaged_files_total") == 0
    assert stop_server(server) == 0


def test_the_llm_class_keeps_its_cache_between_programs(engine: Path, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=16, temperature=0, logprobs=0)
    seen: list[Any] = []
    sums: list[Any] = []
    loaded: list[int] = []
    for _ in range(2):
        with LLM(engine, kv_cache_disk=tmp_path) as llm:
            (output,) = llm.generate([PROMPT], params)  # type: ignore[misc]
            answer = output.outputs[0]
            seen.append((answer.token_ids, answer.text))
            sums.append(answer.cumulative_logprob)
            loaded.append(llm.get_stats()["disk_loaded_blocks"])
    assert seen[0] == seen[1]
    assert sums[0] == pytest.approx(sums[1], rel=0, abs=rounding(engine))
    assert loaded[0] == 0 < loaded[1]


def test_what_an_executor_that_was_killed_has_written_is_found(
    engine: Path, tmp_path: Path
) -> None:
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=0)
    client = ExecutorClient.start(engine, ExecutorConfig(kv_cache_disk=str(tmp_path)))
    llm = LLM(engine, client=client)
    first = llm.generate([PROMPT], params)[0]  # type: ignore[index]
    ends = time.monotonic() + 20
    while (stats := llm.get_stats())["disk_saved_blocks"] < 5:
        assert time.monotonic() < ends, stats
        time.sleep(0.02)
    os.kill(client.pid, signal.SIGKILL)
    llm.shutdown()
    with LLM(engine, kv_cache_disk=tmp_path) as llm:
        again = llm.generate([PROMPT], params)[0]  # type: ignore[index]
        assert llm.get_stats()["disk_loaded_blocks"] >= 4
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.outputs[0].cumulative_logprob == pytest.approx(
        first.outputs[0].cumulative_logprob, rel=0, abs=rounding(engine)
    )
