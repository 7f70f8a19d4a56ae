"""The HTTP server over a GPU engine, its plan stood in for by the exported graph."""

from pathlib import Path

from enginewright.executor.client import ExecutorClient
from enginewright.serve.tokenizer import Tokenizer
from tests.support.gpu_engine import GpuSpec, export_engine
from tests.support.gpu_machine import gpu_machine

from .conftest import serve_app

SPEC = GpuSpec("qwen3", weights="int8", changes=(("vocab_size", 257),))


def test_completions_and_chat(tmp_path: Path) -> None:
    engine = export_engine(SPEC, tmp_path / "engine")
    with (
        gpu_machine(),
        ExecutorClient.start(engine.folder) as client,
        serve_app(client, Tokenizer(engine.tokenizer_folder)) as served,
    ):
        body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        reply = served.post("/v1/completions", body)
        assert reply.status == 200
        assert reply.json["usage"]["completion_tokens"] == 5
        streamed = served.post("/v1/completions", {**body, "stream": True})
        text = "".join(event["choices"][0]["text"] for event in streamed.events)
        assert text == reply.json["choices"][0]["text"]
        assert served.request("GET", "/health").status == 200
        too_long = served.post("/v1/completions", {**body, "prompt": [5] * 300})
        assert too_long.status == 400
