"""The real model as an engine that embeds: the openai client's vectors are the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from enginewright.builder.models.registry import build_network
from enginewright.builder.reference import BLOCK_TOKENS, Reference
from enginewright.converters import open_checkpoint
from enginewright.serve.evaluate.logits import one_sequence
from enginewright.serve.tokenizer import Tokenizer

from .conftest import Served, start_server, stop_server

TEXTS = ["A cat sat on the mat.", "The kitten rests on a rug.", "Interest rates rose in March."]


@pytest.fixture(scope="module")
def embedding(smollm2_embed_engine: Path) -> Iterator[Served]:
    """A server of vectors: the mean of the hidden states, in f32."""
    server = start_server(smollm2_embed_engine, "--max-num-tokens", "64")
    yield server
    assert stop_server(server) == 0


@pytest.fixture(scope="module")
def client(embedding: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_vectors_are_the_reference_s(
    client: openai.OpenAI, embedding: Served, checkpoint: Path
) -> None:
    model = client.models.list().data[0].id
    reply = client.embeddings.create(model=model, input=TEXTS)  # the client asks for base64
    found = np.array([item.embedding for item in reply.data])
    assert found.shape == (3, 576)
    tokenizer = Tokenizer(embedding.engine / "tokenizer")
    with open_checkpoint(str(checkpoint)) as source:
        network = build_network(source.config, source.tensors, 512, embeds=True)
        for text, vector in zip(TEXTS, found, strict=True):
            ids = tokenizer.encode(text)
            states = Reference(network).step(one_sequence(ids, 0, BLOCK_TOKENS))
            mean = states.astype(np.float64).mean(axis=0)
            assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-4
    cat, kitten, rates = found
    assert cat @ kitten > cat @ rates


def test_a_long_list_and_what_is_refused(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    reply = client.embeddings.create(model=model, input=["one", "two"] * 70)
    assert [item.index for item in reply.data] == list(range(140))
    assert reply.data[0].embedding == reply.data[138].embedding
    with pytest.raises(openai.BadRequestError, match="--task embed"):
        client.completions.create(model=model, prompt="Hi")
    with pytest.raises(openai.BadRequestError, match="576"):
        client.embeddings.create(model=model, input="a", dimensions=12)
