"""The LLM class in asyncio: waiting, streaming, many at once, statistics, aborting."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewright import LLM, SamplingParams
from enginewright.runtime.errors import ExecutorDiedError, RequestError
from enginewright.serve.outputs import RequestOutput
from enginewright.serve.tokenizer import Tokenizer

from .conftest import ANSWER, wait_until
from .fake_client import FakeClient

ENDLESS = SamplingParams(max_tokens=100_000, ignore_eos=True)
LONG = SamplingParams(max_tokens=64)
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def llm(fake: FakeClient, tokenizer: Tokenizer, tmp_path: Path) -> Iterator[LLM]:
    with LLM(tmp_path, client=fake) as llm:
        yield llm


async def read(output: RequestOutput) -> str:
    """Read a stream of several answers to its end; the answers' texts, joined."""
    texts = [""] * len(output.outputs)
    seen = list(texts)
    async for update in output:
        for answer in update.outputs:
            if answer.text != seen[answer.index]:
                texts[answer.index] += answer.text_diff
                seen[answer.index] = answer.text
    return "|".join(texts)


def test_await(llm: LLM) -> None:
    async def main() -> None:
        plain = [llm.generate_async("Hi", LONG) for _ in range(5)]
        for output in plain:
            assert (await output).outputs[0].text == ANSWER
        assert (await plain[0].aresult()).finished
        assert (await llm.chat_async(HI, LONG)).outputs[0].text == ANSWER

    asyncio.run(main())


def test_many_at_once(llm: LLM) -> None:
    async def main() -> None:
        outputs = await asyncio.gather(
            *(llm.generate_async(f"prompt {i}", LONG) for i in range(50)),
            *(llm.chat_async(HI, LONG) for _ in range(50)),
        )
        assert [output.outputs[0].text for output in outputs] == [ANSWER] * 100
        texts = await asyncio.gather(
            *(read(llm.generate_async("Hi", LONG, streaming=True)) for _ in range(50)),
            *(read(llm.chat_async(HI, LONG, streaming=True)) for _ in range(50)),
        )
        assert texts == [ANSWER] * 100

    asyncio.run(main())


def test_several_answers_in_one_stream(llm: LLM) -> None:
    params = SamplingParams(max_tokens=64, n=3)
    text = asyncio.run(read(llm.generate_async("Hi", params, streaming=True)))
    assert text == "|".join([ANSWER] * 3)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_loop_goes_on_while_somebody_waits(llm: LLM, fake: FakeClient, streaming: bool) -> None:
    """Also where a stream is awaited as a whole, and its pieces pile up unread."""
    fake.step_seconds = 0.002

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        output = await llm.generate_async("Hi", LONG, streaming=streaming)
        ticker.cancel()
        assert output.outputs[0].text == ANSWER
        assert ticks > 5

    asyncio.run(main())


def test_a_cancelled_wait_ends_nothing_and_abort_does(llm: LLM, fake: FakeClient) -> None:
    fake.step_seconds = 0.001

    async def main() -> None:
        output = llm.generate_async("Hi", ENDLESS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(output, 0.05)
        assert (output.finished, fake.aborted) == (False, [])
        output.abort()
        assert (await output).outputs[0].finish_reason == "cancelled"

    asyncio.run(main())
    wait_until(lambda: len(fake.aborted) == 1)


def test_two_loops_may_wait_for_one_answer(llm: LLM, fake: FakeClient) -> None:
    fake.gate.clear()
    output = llm.generate_async("Hi", LONG)

    async def one() -> str:
        return (await output).outputs[0].text

    async def main() -> list[str]:
        fake.gate.set()
        there = asyncio.to_thread(lambda: asyncio.run(one()))
        return list(await asyncio.gather(one(), there))

    assert asyncio.run(main()) == [ANSWER, ANSWER]


def test_statistics(llm: LLM, fake: FakeClient) -> None:
    assert llm.get_stats()["steps"] == 4
    assert "iterations" not in llm.get_stats()
    assert llm.get_stats(detail=True)["iterations"] == []

    async def main() -> None:
        assert await llm.get_stats_async() == llm.get_stats()
        assert "requests" in await llm.get_stats_async(detail=True)

    asyncio.run(main())


def test_errors(llm: LLM, fake: FakeClient) -> None:
    async def main() -> None:
        fake.gate.clear()
        output = llm.generate_async("Hi", LONG)
        stream = llm.generate_async("Hi", LONG, streaming=True)
        fake.kill()
        with pytest.raises(ExecutorDiedError):
            await output
        with pytest.raises(ExecutorDiedError):
            await read(stream)
        with pytest.raises(TypeError, match="streaming=True"):
            await read(output)

    with pytest.raises(RequestError, match="leave streaming out"):
        llm.generate_async("Hi", SamplingParams(best_of=3), streaming=True)
    asyncio.run(main())


def test_async_with(fake: FakeClient, tokenizer: Tokenizer, tmp_path: Path) -> None:
    async def main() -> None:
        async with LLM(tmp_path, client=fake) as llm:
            assert (await llm.generate_async("Hi", LONG)).outputs[0].text == ANSWER

    asyncio.run(main())
    fake.gate.clear()  # which shutdown has opened for its thread to end
    fake.shutdown()
