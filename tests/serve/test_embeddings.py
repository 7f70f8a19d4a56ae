"""Embeddings end to end: engines built for them, against the reference, in Python and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from enginewright import LLM
from enginewright.builder.build import build
from enginewright.builder.config import BuildConfig
from enginewright.builder.model_config import ModelConfig
from enginewright.builder.models.registry import build_network
from enginewright.builder.reference import BLOCK_TOKENS, Reference
from enginewright.executor.client import ExecutorClient
from enginewright.executor.config import ExecutorConfig
from enginewright.runtime.artifact import read_manifest
from enginewright.runtime.errors import InputError, RequestError
from enginewright.serve.commands.bench import command as bench_command
from enginewright.serve.commands.eval import command as eval_command
from enginewright.serve.commands.inspect import command as inspect_command
from enginewright.serve.evaluate.logits import one_sequence
from enginewright.serve.tokenizer import Tokenizer
from tests.support.tiny import as_tensors, make_tiny_config, make_tiny_weights

from .conftest import Served, serve_app
from .tiny_tokenizer import write_tokenizer

TEXTS = ["Hello there", "the quick brown fox jumps over the lazy dog " * 8, "a", "hello world"]
Vector = npt.NDArray[np.float64]


class Checkpoint:
    """A random model in memory, with the tiny tokenizer."""

    def __init__(self, family: str) -> None:
        self.config: ModelConfig = make_tiny_config(family, vocab_size=512)
        self.source = "tiny"
        self.tensors = as_tensors(make_tiny_weights(self.config))
        self.files: dict[str, str] = {}
        self.size_bytes = 1

    def write_tokenizer(self, folder: Path) -> None:
        write_tokenizer(folder)

    def hidden_states(self, ids: Sequence[int]) -> Vector:
        """The reference's last hidden states, [tokens, hidden]."""
        network = build_network(self.config, self.tensors, 256, embeds=True)
        assert network.outputs[0].shape[-1] == self.config.hidden_size
        return Reference(network).step(one_sequence(ids, 0, BLOCK_TOKENS)).astype(np.float64)


@dataclass(frozen=True)
class Made:
    """An engine, and what it was built from."""

    folder: Path
    checkpoint: Checkpoint
    pooling: str

    def expected(self, ids: Sequence[int]) -> Vector:
        states = self.checkpoint.hidden_states(ids)
        vector = states[-1] if self.pooling == "last" else states.mean(axis=0)
        return vector / np.linalg.norm(vector)


def make(folder: Path, family: str, **settings: Any) -> Made:
    checkpoint = Checkpoint(family)
    config = BuildConfig(weights="f32", isa="generic", max_batch_size=4, max_num_tokens=32)
    config = BuildConfig(**config.to_json() | settings)
    report = build(checkpoint, config, folder)
    assert report.manifest.self_check is not None
    return Made(report.folder, checkpoint, settings.get("pooling", "last"))


@pytest.fixture(scope="module", params=[("qwen2", "last"), ("qwen3", "mean")], ids=["last", "mean"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An engine for each pooling: one of a model with a tied head, one of a model without."""
    family, pooling = request.param
    settings = {"pooling": pooling} if pooling == "mean" else {}
    return make(tmp_path_factory.mktemp("engine") / family, family, task="embed", **settings)


@pytest.fixture(scope="module")
def llm(made: Made) -> Iterator[LLM]:
    with LLM(made.folder, threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(made: Made, llm: LLM) -> Iterator[Served]:
    with serve_app(llm.client, Tokenizer(made.folder / "tokenizer")) as served:
        yield served


def test_the_manifest_says_what_the_engine_is_for(made: Made) -> None:
    manifest = read_manifest(made.folder)
    assert (manifest.embeds, manifest.pooling, manifest.output_size) == (True, made.pooling, 64)
    assert manifest.quantization.head == "none"
    assert all(tensor.name != "head.weight" for tensor in manifest.tensors)
    assert manifest.self_check is not None
    assert manifest.self_check.passed
    with pytest.raises(InputError, match="gives vectors, no logits"):
        manifest.check_generates()


def test_inspect_says_so(made: Made) -> None:
    printed = CliRunner().invoke(inspect_command, [str(made.folder)]).output
    assert f"embeds texts, pooling: {made.pooling}" in printed


def test_vectors_are_the_reference_s(made: Made, llm: LLM) -> None:
    outputs = llm.embed(TEXTS)
    assert isinstance(outputs, list)
    for text, output in zip(TEXTS, outputs, strict=True):
        assert output.prompt == text
        found = np.array(output.embedding)
        assert found.shape == (64,)
        assert np.abs(found - made.expected(output.prompt_token_ids)).max() < 1e-4
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
    assert max(len(output.prompt_token_ids) for output in outputs) > 64  # more than two steps


def test_company_and_chunks_change_no_bit(made: Made, llm: LLM) -> None:
    together = llm.embed(TEXTS * 5)
    assert isinstance(together, list)
    config = ExecutorConfig(max_num_tokens=5, max_batch_size=3, threads=1)
    client = ExecutorClient.start(made.folder, config)
    with LLM(made.folder, client=client) as other:
        alone = [other.embed(text) for text in TEXTS]
    for index, output in enumerate(together):
        single = alone[index % len(TEXTS)]
        assert not isinstance(single, list)
        assert output.embedding == single.embedding


@pytest.mark.parametrize("overlap", [False, True])
def test_a_tight_pool_and_overlap_change_no_bit(made: Made, llm: LLM, overlap: bool) -> None:
    """A pool of four blocks, and texts of three: they wait for each other's."""
    texts = [f"{number} {TEXTS[1]}" for number in range(6)]
    expected = llm.embed(texts)
    assert isinstance(expected, list)
    block = read_manifest(made.folder).kv.block_bytes
    config = ExecutorConfig(
        overlap=overlap,
        kv_cache_memory=4 * block,
        capacity_policy="max_utilization",
        chunk_policy="equal_progress",
        max_num_tokens=8,
        max_batch_size=4,
    )
    with LLM(made.folder, client=ExecutorClient.start(made.folder, config)) as other:
        found = other.embed(texts)
    assert isinstance(found, list)
    assert [one.embedding for one in found] == [one.embedding for one in expected]


def test_async(llm: LLM) -> None:
    async def both() -> list[list[float] | None]:
        outputs = [llm.embed_async(text) for text in TEXTS[:2]]
        return [(await output).embedding for output in outputs]

    expected = llm.embed(TEXTS[:2])
    assert isinstance(expected, list)
    assert asyncio.run(both()) == [output.embedding for output in expected]


def test_over_http(served: Served, llm: LLM) -> None:
    expected = llm.embed(TEXTS)
    assert isinstance(expected, list)
    reply = served.post("/v1/embeddings", {"input": TEXTS, "model": "fake"})
    assert reply.status == 200
    assert [item["index"] for item in reply.json["data"]] == [0, 1, 2, 3]
    for item, output in zip(reply.json["data"], expected, strict=True):
        assert (item["object"], item["embedding"]) == ("embedding", output.embedding)
    tokens = sum(len(output.prompt_token_ids) for output in expected)
    assert reply.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (reply.json["object"], reply.json["model"]) == ("list", "fake")


def test_forms_of_input_and_of_numbers(served: Served, llm: LLM) -> None:
    single = llm.embed(TEXTS[0])
    assert not isinstance(single, list)
    ids = single.prompt_token_ids
    for value in (TEXTS[0], [TEXTS[0]], ids, [ids]):
        body = {"input": value, "encoding_format": "base64", "dimensions": 64, "user": "me"}
        [item] = served.post("/v1/embeddings", body).json["data"]
        numbers = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        assert numbers.tolist() == single.embedding
    many = served.post("/v1/embeddings", {"input": ["hi", "you"] * 50})
    assert len({json.dumps(item["embedding"]) for item in many.json["data"]}) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": [5000]}, "input"),
        ({"input": "a", "model": "other"}, "model"),
        ({"input": "word " * 300}, "input"),
    ],
)
def test_refusals(served: Served, body: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/embeddings", body)
    assert reply.status == (404 if param == "model" else 400)
    assert reply.json["error"]["param"] == param


def test_an_engine_that_embeds_writes_nothing(served: Served, llm: LLM) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    bodies = {
        "/v1/completions": {"prompt": "Hi"},
        "/v1/chat/completions": chat,
        "/v1/responses": {"input": "Hi"},
        "/v1/messages": {**chat, "max_tokens": 4},
    }
    for path, body in bodies.items():
        reply = served.post(path, body)
        assert reply.status == 400
        assert "--task embed" in reply.json["error"]["message"]
    for call in (lambda: llm.generate("Hi"), lambda: llm.chat([{"role": "user", "content": "a"}])):
        with pytest.raises(RequestError, match="gives vectors and writes no text"):
            call()


def test_it_is_well_and_counts(served: Served) -> None:
    assert served.request("GET", "/health/generate").status == 200
    before = prompt_tokens(served)
    served.post("/v1/embeddings", {"input": [[5, 6, 7], [8]]})
    assert prompt_tokens(served) == before + 4


def prompt_tokens(served: Served) -> float:
    text = served.request("GET", "/metrics").body.decode()
    [line] = [one for one in text.splitlines() if one.startswith("enginewright_prompt_tokens_t")]
    return float(line.split()[-1])


def test_commands_that_need_logits_say_so(made: Made, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some words of no meaning")
    for command, args in (
        (eval_command, ["perplexity", str(made.folder), str(text)]),
        (bench_command, ["engine", str(made.folder)]),
    ):
        result = CliRunner().invoke(command, args)
        assert isinstance(result.exception, InputError), result.output
        assert "gives vectors, no logits" in str(result.exception)


def test_an_engine_that_writes_embeds_nothing(tmp_path: Path) -> None:
    made = make(tmp_path / "engine", "llama")
    with (
        LLM(made.folder) as llm,
        serve_app(llm.client, Tokenizer(made.folder / "tokenizer")) as served,
    ):
        with pytest.raises(RequestError, match="build --task embed"):
            llm.embed("Hi")
        reply = served.post("/v1/embeddings", {"input": "Hi"})
        assert (reply.status, reply.json["error"]["param"]) == (400, "model")
        assert served.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2}).status == 200


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InputError, match="only an engine that embeds pools"):
        BuildConfig(pooling="mean")
    with pytest.raises(InputError, match="has no head"):
        BuildConfig(task="embed", head_weights="f32")
    assert BuildConfig(task="embed").resolve(make_tiny_config()).pooling == "last"
