"""256 streams at once through the whole command: every token of each, in its order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from enginewright.serve.bench.datasets import Prompt
from enginewright.serve.bench.http_stream import HttpClient
from enginewright.serve.bench.load import Load, Outcome, RequestOptions, run_load
from tests.benchmarks.stub_executor import STREAMS, VOCAB_SIZE
from tests.benchmarks.stub_server import stub_server
from tests.serve.tiny_tokenizer import write_tokenizer

TOKENS = 40


def test_no_chunk_is_lost_or_out_of_order(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    prompts = [Prompt([number], TOKENS) for number in range(STREAMS)]

    async def run(port: int) -> list[Outcome]:
        client = HttpClient(f"http://127.0.0.1:{port}")
        outcomes, _ = await run_load(client, prompts, RequestOptions(), Load())
        await client.close()
        return outcomes

    with stub_server(tmp_path, "--log-level", "warning") as (_, port):
        outcomes = asyncio.run(run(port))
    assert [outcome.error for outcome in outcomes] == [""] * STREAMS
    for number, outcome in enumerate(outcomes):
        expected = [(number + 1 + place) % VOCAB_SIZE for place in range(TOKENS)]
        assert outcome.token_ids == expected
        moments = [moment for moment, _ in outcome.chunks]
        assert moments == sorted(moments)
