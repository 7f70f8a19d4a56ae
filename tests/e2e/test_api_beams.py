"""Beam search over HTTP finds what the LLM class finds."""

from __future__ import annotations

import json
import urllib.request
from itertools import pairwise
from typing import Any

import pytest

from enginewright import LLM, SamplingParams
from enginewright.serve.outputs import RequestOutput

from .conftest import Served, machine_of, rounding

PROMPT = "The three primary colours are"


def post(served: Served, path: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(served.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def test_beams_over_http_are_those_of_the_llm_class(served: Served) -> None:
    params = SamplingParams(
        max_tokens=8, n=2, best_of=3, use_beam_search=True, length_penalty=0.5, logprobs=1
    )
    with machine_of(served.engine), LLM(served.engine) as llm:
        output = llm.generate(PROMPT, params)
    assert isinstance(output, RequestOutput)
    fields = {"max_tokens": 8, "n": 2, "best_of": 3, "use_beam_search": True, "length_penalty": 0.5}
    answer = post(served, "/v1/completions", prompt=PROMPT, logprobs=1, **fields)
    assert [one["text"] for one in answer["choices"]] == [one.text for one in output.outputs]
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]
    totals = [sum(one["logprobs"]["token_logprobs"]) for one in answer["choices"]]
    wanted = [one.cumulative_logprob for one in output.outputs]
    assert totals == pytest.approx(wanted, rel=0, abs=8 * rounding(served.engine))
    assert answer["usage"]["completion_tokens"] == sum(one.length for one in output.outputs)
    messages = [{"role": "user", "content": "Name a colour."}]
    chat = post(served, "/v1/chat/completions", messages=messages, **fields)
    texts = [choice["message"]["content"] for choice in chat["choices"]]
    assert len(set(texts)) == 2


def test_no_run_of_tokens_comes_twice(served: Served) -> None:
    fields = {"max_tokens": 40, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    answer = post(served, "/v1/completions", prompt="1 2 1 2 1 2", no_repeat_ngram_size=2, **fields)
    choice = answer["choices"][0]
    tokens = choice["token_ids"]
    pairs = list(pairwise(tokens))
    assert len(pairs) == len(set(pairs)) == 39
