"""A conversation that appears as it is written: python docs/examples/chat_stream.py ENGINE."""

import sys

from enginewright import LLM, SamplingParams

QUESTIONS = ["Name three colours.", "Which of them is the sky's?"]

with LLM(sys.argv[1]) as llm:
    params = SamplingParams(max_tokens=40, temperature=0)
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in QUESTIONS:
        print(f"> {question}")
        messages.append({"role": "user", "content": question})
        output = llm.chat_async(messages, params, streaming=True)
        for update in output:
            print(update.outputs[0].text_diff, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": output.outputs[0].text})
