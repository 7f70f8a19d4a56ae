"""Answers of which only the likeliest are given, through the LLM class."""

from pathlib import Path

import pytest

from enginewright import LLM, SamplingParams
from enginewright.runtime.errors import RequestError
from enginewright.serve.outputs import RequestOutput

from .fake_client import FakeClient
from .tiny_tokenizer import write_tokenizer


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def generate(engine: Path, params: SamplingParams) -> RequestOutput:
    """Answers of 10, 9, 8 ... tokens for seeds 0, 1, 2 ...; every token costs the same."""
    client = FakeClient(lambda prompt, asked: [40] * (10 - asked.seed))
    with LLM(engine, client=client) as llm:
        output = llm.generate("Hi", params)
    assert isinstance(output, RequestOutput)
    return output


def test_the_likeliest_answers_are_given(engine: Path) -> None:
    params = SamplingParams(max_tokens=64, n=2, best_of=4, seed=0)
    output = generate(engine, params)
    assert [(one.index, one.length) for one in output.outputs] == [(0, 7), (1, 8)]
    assert [one.cumulative_logprob for one in output.outputs] == [-3.5, -4.0]
    assert all(one.logprobs == [] for one in output.outputs)
    with_logprobs = SamplingParams(max_tokens=64, best_of=3, seed=0, logprobs=1)
    (best,) = generate(engine, with_logprobs).outputs
    assert len(best.logprobs) == best.length == 8
    assert len(generate(engine, SamplingParams(max_tokens=64, n=3, seed=0)).outputs) == 3


def test_the_best_cannot_be_streamed_or_fewer_than_asked(engine: Path) -> None:
    with LLM(engine, client=FakeClient(lambda prompt, asked: [40])) as llm:
        for params in (SamplingParams(best_of=2), SamplingParams(use_beam_search=True)):
            with pytest.raises(RequestError, match="streaming"):
                llm.generate_async("Hi", params, streaming=True)
        with pytest.raises(RequestError, match="best_of is 1"):
            llm.generate("Hi", SamplingParams(n=2, best_of=1))
