"""The LLM class: order, streams, aborting, errors, forms of answers."""

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import enginewright
from enginewright import LLM, Guided, SamplingParams
from enginewright.runtime.errors import ContextLengthError, ExecutorDiedError, RequestError
from enginewright.serve.tokenizer import Tokenizer

from .conftest import ANSWER, wait_until
from .fake_client import MAX_SEQ_LEN, FakeClient

ENDLESS = SamplingParams(max_tokens=100_000, ignore_eos=True)
LONG = SamplingParams(max_tokens=64)


@pytest.fixture
def llm(fake: FakeClient, tokenizer: Tokenizer, tmp_path: Path) -> Iterator[LLM]:
    with LLM(tmp_path, client=fake) as llm:
        yield llm


def test_names_are_imported_when_asked_for() -> None:
    assert enginewright.LLM is LLM
    assert (enginewright.Guided, enginewright.SamplingParams) == (Guided, SamplingParams)
    with pytest.raises(AttributeError):
        _ = enginewright.Nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_one_prompt(llm: LLM) -> None:
    output = llm.generate("Hi", LONG)
    assert not isinstance(output, list)
    assert (output.prompt, output.finished) == ("Hi", True)
    assert output.prompt_token_ids == llm.tokenizer.encode("Hi")
    [answer] = output.outputs
    assert (answer.index, answer.text, answer.finish_reason) == (0, ANSWER, "stop")
    assert answer.stop_reason is None
    assert answer.token_ids[:-1] == llm.tokenizer.encode(ANSWER)
    assert answer.length == len(answer.token_ids)


def test_lists_keep_their_order(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count) for count in (9, 1, 4)]
    outputs = llm.generate(["a", [5, 6], "c"], params)
    assert isinstance(outputs, list)
    assert [output.outputs[0].length for output in outputs] == [9, 1, 4]
    assert [output.prompt for output in outputs] == ["a", None, "c"]
    assert llm.generate([]) == []
    one = llm.generate([5, 6], LONG)
    assert not isinstance(one, list)
    assert one.prompt_token_ids == [5, 6]


def test_lists_must_match(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 inputs but 1"):
        llm.generate(["a", "b"], [LONG])


def test_choices_stop_strings_and_logprobs(llm: LLM, fake: FakeClient) -> None:
    params = SamplingParams(max_tokens=64, n=2, seed=3, stop="how", logprobs=2)
    output = llm.generate("Hi", params)
    assert not isinstance(output, list)
    assert [answer.text for answer in output.outputs] == [ANSWER.split("how")[0]] * 2
    assert [answer.stop_reason for answer in output.outputs] == ["how", "how"]
    assert [one.seed for one in fake.submitted] == [3, 4]
    answer = output.outputs[0]
    assert len(answer.logprobs) == answer.length
    assert answer.cumulative_logprob == -0.5 * answer.length
    assert answer.logprobs[0][answer.token_ids[0]].rank == 1


def test_no_detokenizing(llm: LLM) -> None:
    output = llm.generate("Hi", SamplingParams(max_tokens=5, detokenize=False))
    assert not isinstance(output, list)
    assert (output.outputs[0].text, output.outputs[0].length) == ("", 5)


def test_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    output = llm.chat(messages, LONG)
    assert not isinstance(output, list)
    assert output.outputs[0].text == ANSWER
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    outputs = llm.chat([messages, messages], LONG)
    assert isinstance(outputs, list)
    assert len(outputs) == 2
    with pytest.raises(RequestError, match="messages is empty"):
        llm.chat([])


def test_stream(llm: LLM) -> None:
    pieces = [
        update.outputs[0].text_diff for update in llm.generate_async("Hi", LONG, streaming=True)
    ]
    assert len(pieces) > 5
    assert "".join(pieces) == ANSWER
    with pytest.raises(TypeError, match="streaming=True"):
        iter(llm.generate_async("Hi")).__next__()


def test_abort(llm: LLM, fake: FakeClient) -> None:
    fake.step_seconds = 0.01
    output = llm.generate_async("Hi", ENDLESS, streaming=True)
    next(iter(output))
    output.abort()
    assert output.result().outputs[0].finish_reason == "cancelled"
    wait_until(lambda: len(fake.aborted) == 1)
    output.abort()
    assert len(fake.aborted) == 1


def test_timeout(llm: LLM, fake: FakeClient) -> None:
    fake.gate.clear()
    output = llm.generate_async("Hi", LONG)
    with pytest.raises(TimeoutError):
        output.result(timeout=0.01)
    fake.gate.set()
    assert output.result().finished


def test_refusals(llm: LLM) -> None:
    with pytest.raises(RequestError, match="temperature"):
        llm.generate("Hi", SamplingParams(temperature=-1))
    with pytest.raises(ContextLengthError):
        llm.generate([1] * MAX_SEQ_LEN)


def test_death_ends_every_request(llm: LLM, fake: FakeClient) -> None:
    fake.gate.clear()
    output = llm.generate_async("Hi", LONG)
    fake.kill()
    with pytest.raises(ExecutorDiedError):
        output.result()
    with pytest.raises(ExecutorDiedError):
        llm.generate("Hi")


def test_defaults_come_from_the_model(llm: LLM, fake: FakeClient) -> None:
    llm.tokenizer.sampling_defaults.update(temperature=0.25, repetition_penalty=1.5)
    llm.generate("Hi")
    llm.generate("Hi", SamplingParams(top_k=3))
    llm.generate("Hi", SamplingParams(temperature=0.0))
    taken = [(one.temperature, one.repetition_penalty) for one in fake.submitted]
    assert taken == [(0.25, 1.5), (0.25, 1.0), (0.0, 1.0)]


@pytest.mark.parametrize("way", ["one", "list", "chat", "stream"])
def test_ctrl_c_ends_the_requests(llm: LLM, fake: FakeClient, way: str) -> None:
    fake.step_seconds = 0.005
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_until(lambda: len(fake.submitted) == (3 if way == "list" else 1))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    calls = {
        "one": lambda: llm.generate("Hi", ENDLESS),
        "list": lambda: llm.generate(["a", "b", "c"], ENDLESS),
        "chat": lambda: llm.chat([{"role": "user", "content": "Hi"}], ENDLESS),
        "stream": lambda: list(llm.generate_async("Hi", ENDLESS, streaming=True)),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[way]()
    thread.join()
    wait_until(lambda: len(fake.aborted) == len(fake.submitted))
    output = llm.generate("Hi", LONG)
    assert not isinstance(output, list)
    assert output.outputs[0].text == ANSWER


@dataclass
class City:
    name: str
    large: bool


def test_forms_of_answers(llm: LLM, fake: FakeClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    forms = [
        Guided.json(),
        Guided.json(schema),
        Guided.json(json.dumps(schema)),
        Guided.json(City),
        Guided.regex("[0-9]+"),
        Guided.grammar('start: "a"'),
        Guided.choice(("yes", "no")),
    ]
    llm.generate(["x"] * len(forms), [SamplingParams(guided=form) for form in forms])
    assert [params.guided for params in fake.submitted] == forms
    assert [form.kind for form in forms] == [
        "json_object",
        *["json_schema"] * 3,
        "regex",
        "grammar",
        "choice",
    ]
    assert json.loads(forms[1].value) == json.loads(forms[2].value) == schema
    assert set(json.loads(forms[3].value)["$defs"]["City"]["properties"]) == {"name", "large"}
    assert json.loads(forms[6].value) == ["yes", "no"]
    with pytest.raises(RequestError, match="object has no JSON schema"):
        Guided.json(object)
