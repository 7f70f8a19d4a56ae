"""Complete a list of prompts: python docs/examples/generate.py ENGINE."""

import sys

from enginewright import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Water boils at", "The opposite of hot is"]

with LLM(sys.argv[1]) as llm:
    greedy = SamplingParams(max_tokens=12, temperature=0)
    for output in llm.generate(PROMPTS, greedy):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

    # Three answers of one prompt, drawn with the seeds 7, 8 and 9: the same at every run.
    drawn = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.9, seed=7, n=3, logprobs=0)
    for answer in llm.generate("Once upon a time", drawn).outputs:
        print(f"{answer.cumulative_logprob:8.2f}  {answer.text!r}  ({answer.finish_reason})")
