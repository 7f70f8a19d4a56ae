"""What the executor says of itself, step by step: python docs/examples/stats.py ENGINE."""

import sys

from enginewright import LLM, SamplingParams

with LLM(sys.argv[1]) as llm:
    llm.generate(["One", "Two", "Three"], SamplingParams(max_tokens=8, temperature=0))
    stats = llm.get_stats(detail=True)

print(f"{stats['prompt_tokens']} prompt tokens, {stats['generation_tokens']} generated, in")
print(f"{stats['steps']} steps of {stats['busy_seconds']:.3f} s; KV blocks: {stats['num_blocks']}")
for step in stats["iterations"]:
    batch = step["inflightBatchingStats"]
    print(
        f"step {step['iter']:3}: {step['iterLatencyMS']:6.1f} ms, "
        f"{batch['numContextRequests']} prompts and {batch['numGenRequests']} answers"
    )
for request in stats["ended_requests"]:
    seconds = request["ended"] - request["arrival"]
    print(f"{request['id']}: {request['numGeneratedTokens']} tokens in {seconds:.3f} s")
