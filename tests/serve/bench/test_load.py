"""The load generator against a server of ours, and its figures against numbers done by hand."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from enginewright.runtime.errors import InputError
from enginewright.serve.bench.datasets import (
    Lengths,
    Prompt,
    file_prompts,
    synthetic_prompts,
)
from enginewright.serve.bench.determinism import check_determinism
from enginewright.serve.bench.http_stream import HttpClient
from enginewright.serve.bench.load import Load, Outcome, RequestOptions, run_load
from enginewright.serve.bench.report import latencies, make_report, parse_goodput, percentile
from enginewright.serve.commands.bench import command
from tests.serve.conftest import Served
from tests.serve.fake_client import MAX_SEQ_LEN, FakeClient

VLLM_KEYS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate
burstiness max_concurrency duration completed failed total_input_tokens total_output_tokens
request_throughput output_throughput total_token_throughput max_output_tokens_per_s
max_concurrent_requests mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms
median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms
median_e2el_ms std_e2el_ms p99_e2el_ms""".split()


def outcome(begun: float, moments: list[tuple[float, int]], latency: float) -> Outcome:
    tokens = sum(count for _, count in moments)
    return Outcome(begun, latency, moments, prompt_tokens=10, output_tokens=tokens, status=200)


def run(
    served: Served, prompts: list[Prompt], load: Load, **options: Any
) -> tuple[list[Outcome], float]:
    async def go() -> tuple[list[Outcome], float]:
        client = HttpClient(f"http://127.0.0.1:{served.port}")
        try:
            return await run_load(client, prompts, RequestOptions(**options), load)
        finally:
            await client.close()

    return asyncio.run(go())


def test_closed_loop(served: Served) -> None:
    prompts = synthetic_prompts(12, Lengths(7, 9), seed=1)
    outcomes, seconds = run(served, prompts, Load(max_concurrency=3))
    assert [o.error for o in outcomes] == [""] * 12
    assert {(o.prompt_tokens, o.output_tokens, o.status) for o in outcomes} == {(7, 9, 200)}
    report = make_report(outcomes, seconds, Load(max_concurrency=3))
    assert report["completed"] == 12
    assert report["total_output_tokens"] == 108
    assert 1 <= report["max_concurrent_requests"] <= 3


def test_chat_and_open_loop(served: Served) -> None:
    prompts = [Prompt("Hi", 5), Prompt([{"role": "user", "content": "Hi"}], 5)]
    load = Load(request_rate=200.0, burstiness=0.5)
    outcomes, _ = run(served, prompts, load, chat=True)
    assert [o.error for o in outcomes] == ["", ""]
    assert outcomes[1].begun >= outcomes[0].begun


def test_errors_become_outcomes(served: Served, fake: FakeClient) -> None:
    outcomes, seconds = run(served, [Prompt([5] * (MAX_SEQ_LEN + 1), 5)], Load())
    assert outcomes[0].status == 400
    assert "too long" in outcomes[0].error
    report = make_report(outcomes, seconds, Load())
    assert (report["failed"], report["errors_by_status"]) == (1, {"400": 1})
    fake.alive = False
    outcomes, _ = run(served, [Prompt("Hi", 5)], Load())
    assert outcomes[0].status == 503


def test_nobody_there() -> None:
    async def go() -> list[Outcome]:
        client = HttpClient("http://127.0.0.1:9")
        outcomes, _ = await run_load(client, [Prompt("Hi", 1)], RequestOptions(), Load())
        return outcomes

    assert asyncio.run(go())[0].error


@pytest.mark.parametrize("url", ["ftp://x", "http://", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(InputError, match="no address"):
        HttpClient(url)


def test_latencies_by_hand() -> None:
    found = latencies([outcome(0.0, [(0.5, 1), (0.7, 2), (1.0, 1)], 1.1)])
    assert found["ttft"] == [0.5]
    assert found["e2el"] == [1.1]
    assert found["tpot"] == pytest.approx([0.2])
    assert found["itl"] == pytest.approx([0.2, 0.3])
    assert found["itl_token"] == pytest.approx([0.1, 0.1, 0.3])


def test_report_by_hand() -> None:
    outcomes = [
        outcome(0.0, [(0.1, 1), (0.2, 1)], 0.2),
        outcome(1.0, [(0.3, 1), (0.9, 1)], 0.9),
    ]
    report = make_report(outcomes, 2.0, Load(), goodput={"ttft": 200.0, "tpot": 150.0})
    assert report["request_throughput"] == 1.0
    assert report["output_throughput"] == 2.0
    assert report["total_token_throughput"] == 12.0
    assert report["request_goodput"] == 0.5
    assert report["mean_ttft_ms"] == pytest.approx(200.0)
    assert report["max_ttft_ms"] == pytest.approx(300.0)
    assert report["max_output_tokens_per_s"] == 2.0
    assert report["max_concurrent_requests"] == 1


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


def test_objectives() -> None:
    assert parse_goodput(["ttft:200", "e2el:1e3"]) == {"ttft": 200.0, "e2el": 1000.0}
    for word in ("ttft", "x:1", "tpot:-1"):
        with pytest.raises(ValueError, match=r"objective|float"):
            parse_goodput([word])


def test_synthetic_prompts_are_repeatable() -> None:
    lengths = Lengths(20, 10, prefix=5, spread=0.5)
    first, again = synthetic_prompts(8, lengths, 3), synthetic_prompts(8, lengths, 3)
    assert first == again != synthetic_prompts(8, lengths, 4)
    assert len({tuple(prompt.content[:5]) for prompt in first}) == 1
    assert all(15 <= len(prompt.content) <= 35 for prompt in first)
    assert all(5 <= prompt.output_tokens <= 15 for prompt in first)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"messages": [{"role": "user"}]}\n')
    found = file_prompts(path, 4, 8, seed=0)
    assert len(found) == 4
    assert sorted(prompt.output_tokens for prompt in found) == [3, 3, 8, 8]
    path.write_text(json.dumps([{"conversations": [{"from": "human", "value": "hello"}]}]))
    assert file_prompts(path, 1, 8, seed=0) == [Prompt("hello", 8)]
    for text in ("", "[]", '{"prompt": ""}', '{"prompt": 3}', '{"x": 1}', "nonsense"):
        path.write_text(text)
        with pytest.raises(InputError):
            file_prompts(path, 1, 8, seed=0)


def test_determinism(served: Served, fake: FakeClient) -> None:
    async def check() -> Any:
        client = HttpClient(f"http://127.0.0.1:{served.port}")
        prompts = synthetic_prompts(6, Lengths(5, 6), 0)
        verdict = await check_determinism(client, prompts, RequestOptions(), 4)
        await client.close()
        return verdict

    verdict = asyncio.run(check())
    assert (verdict.compared, verdict.same) == (6, True)
    ids = served.tokenizer.encode("one two three four five six seven eight")
    calls = iter(range(10_000))
    fake._reply = lambda prompt, params: ids[next(calls) % 5 :] * 9
    assert not asyncio.run(check()).same


def test_the_command(served: Served, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{served.port}"
    file = tmp_path / "figures.json"
    options = ["--num-prompts", "6", "--output-len", "5", "--goodput", "ttft:10000", "--save"]
    done = CliRunner().invoke(
        command, ["serve", url, *options, str(file), "--check-determinism", "--save-detailed"]
    )
    assert done.exit_code == 0, done.output
    assert "6 of 6 answers are the same" in done.output
    figures = json.loads(file.read_text())
    assert set(VLLM_KEYS) <= figures.keys()
    assert figures["model_id"] == "fake"
    assert figures["request_goodput"] > 0
    assert figures["determinism"]["same"] is True
    assert figures["server"]["steps"] == 0  # the fake's counters stand still
    assert len(figures["ttfts"]) == 6
    assert figures["p99_itl_token_ms"] >= 0


def test_a_sweep(served: Served) -> None:
    url = f"http://127.0.0.1:{served.port}"
    options = ["--num-prompts", "4", "--output-len", "3", "--json", "--sweep", "concurrency=1,2"]
    done = CliRunner().invoke(command, ["serve", url, *options])
    figures = json.loads(done.output)
    assert [run["max_concurrency"] for run in figures["runs"]] == [1, 2]


@pytest.mark.parametrize("words", [["--sweep", "x=1"], ["--goodput", "a"], ["--request-rate", "0"]])
def test_wrong_options(words: list[str]) -> None:
    done = CliRunner().invoke(command, ["serve", "http://127.0.0.1:9", *words])
    assert isinstance(done.exception, InputError)


@pytest.mark.parametrize("sweep", [[], ["--sweep", "concurrency=1,2"]])
def test_plots(served: Served, tmp_path: Path, sweep: list[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    url, file = f"http://127.0.0.1:{served.port}", tmp_path / "plot.png"
    options = ["--num-prompts", "4", "--output-len", "3", *sweep, "--plot", str(file)]
    done = CliRunner().invoke(command, ["serve", url, *options])
    assert done.exit_code == 0, done.output
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    answers = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        await reader.readuntil(b"\r\n\r\n")
        answers += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()  # as a server does with a connection that was idle for long

    async def go() -> list[tuple[int, bytes]]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        replies = []
        for _ in range(3):
            replies.append(await client.get("/"))
            await asyncio.sleep(0.05)
        await client.close()
        server.close()
        return replies

    assert asyncio.run(go()) == [(200, b"hi")] * 3
    assert answers == 3
