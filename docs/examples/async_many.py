"""Many requests from one event loop: python docs/examples/async_many.py ENGINE."""

import asyncio
import sys

from enginewright import LLM, SamplingParams

PARAMS = SamplingParams(max_tokens=16, temperature=0)


async def first_words(llm: LLM, prompt: str, words: int) -> str:
    """Read a stream until it has some words, then end the request."""
    output = llm.generate_async(prompt, SamplingParams(max_tokens=500), streaming=True)
    async for update in output:
        if len(update.outputs[0].text.split()) > words:
            output.abort()
    return output.outputs[0].text


async def main() -> None:
    """Everything below runs in the same batches of the engine."""
    async with LLM(sys.argv[1]) as llm:
        prompts = [f"{number} plus {number} is" for number in range(20)]
        *answers, story = await asyncio.gather(
            *(llm.generate_async(prompt, PARAMS) for prompt in prompts),
            first_words(llm, "Once upon a time", 10),
        )
        for output in answers:
            print(output.prompt, output.outputs[0].text.strip().splitlines()[:1])
        print("story:", story)
        stats = await llm.get_stats_async()
        print(f"{stats['submitted']} requests in {stats['steps']} steps")


asyncio.run(main())
