"""Server, client and a real executor process, over a toy session."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewright import LLM, SamplingParams
from enginewright.executor.client import ExecutorClient
from enginewright.runtime.errors import ContextLengthError, ExecutorDiedError
from enginewright.serve.tokenizer import Tokenizer

from .conftest import Served, serve_app, wait_until
from .toy_executor import VOCAB_SIZE

TOY = (sys.executable, str(Path(__file__).with_name("toy_executor.py")))
ENDLESS = {"prompt": [5], "stream": True, "max_tokens": 400, "ignore_eos": True, "n": 3}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ExecutorClient]:
    with ExecutorClient.start(tmp_path, command=TOY) as client:
        yield client


@pytest.fixture
def toy(client: ExecutorClient, tokenizer: Tokenizer) -> Iterator[Served]:
    with serve_app(client, tokenizer) as served:
        yield served


def gauge(served: Served, name: str) -> float:
    text = served.request("GET", "/metrics").body.decode()
    [line] = [line for line in text.splitlines() if line.startswith(f"enginewright_{name}{{")]
    return float(line.split()[-1])


def test_answers(toy: Served) -> None:
    body = {"prompt": [10], "max_tokens": 5, "stop_token_ids": [13], "n": 2}
    reply = toy.post("/v1/completions", body).json
    assert [choice["stop_reason"] for choice in reply["choices"]] == [13, 13]
    assert reply["usage"]["completion_tokens"] == 6
    assert reply["choices"][0]["text"] == toy.tokenizer.decode([11, 12])


def test_blocks_are_back_after_a_disconnect(toy: Served) -> None:
    with toy.open_raw("/v1/completions", ENDLESS) as raw:
        assert raw.recv(100)
        assert gauge(toy, "kv_blocks_used") > 0
        assert gauge(toy, "num_requests_running") == 3
    wait_until(lambda: gauge(toy, "kv_blocks_used") == 0)
    assert gauge(toy, "num_requests_running") == 0
    assert gauge(toy, "kv_blocks_free") == 64


def test_a_stop_string_frees_its_blocks(toy: Served) -> None:
    stop = toy.tokenizer.decode([40, 41])
    body = {"prompt": [35], "max_tokens": 200, "ignore_eos": True, "stop": stop}
    choice = toy.post("/v1/completions", body).json["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (toy.tokenizer.decode([36, 37, 38, 39]), stop)
    wait_until(lambda: gauge(toy, "kv_blocks_used") == 0)


def test_too_long(toy: Served) -> None:
    reply = toy.post("/v1/completions", {"prompt": [5] * 600, "stream": True})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")
    reply = toy.post("/v1/completions", {"prompt": [VOCAB_SIZE], "stream": True})
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")


def test_a_killed_executor_is_told(client: ExecutorClient, toy: Served) -> None:
    with toy.open_raw("/v1/completions", ENDLESS) as raw:
        received = raw.recv(100)
        os.kill(client.pid, signal.SIGKILL)
        while b"[DONE]" not in received:
            received += raw.recv(65536)
    assert b'"code":"executor_died"' in received
    assert toy.request("GET", "/health").status == 503
    assert toy.post("/v1/completions", ENDLESS).status == 503
    assert gauge(toy, "up") == 0


def test_llm(client: ExecutorClient, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with LLM(tmp_path, client=client) as llm:
        params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=0)
        outputs = llm.generate([[i] for i in range(10, 30)], params)
        assert isinstance(outputs, list)
        answers = [output.outputs[0] for output in outputs]
        assert [answer.token_ids for answer in answers] == [
            [i + 1, i + 2, i + 3] for i in range(10, 30)
        ]
        assert answers[0].cumulative_logprob == -3.0
        with pytest.raises(ContextLengthError):
            llm.generate([5] * 600)
        running = llm.generate_async([5], SamplingParams(max_tokens=400, ignore_eos=True))
    assert running.result().outputs[0].finish_reason == "cancelled"
    with pytest.raises(ExecutorDiedError):
        llm.generate("Hi")
