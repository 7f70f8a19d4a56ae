"""vLLM in process: its LLM class."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

REPEATS = 3
TOP = 2000


def open_library(path: str, format: str, mode: str) -> Any:
    """Open the Hugging Face folder in bf16."""
    return _Llm(path)


class _Llm:
    def __init__(self, path: str) -> None:
        self._vllm: Any = import_module("vllm")
        self._llm = self._vllm.LLM(
            model=path,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=64,
            max_logprobs=TOP,
            enable_prefix_caching=False,
        )
        self._rng = np.random.default_rng()
        self.prefill(128)

    def _prompts(self, sequences: int, tokens: int) -> list[dict[str, Any]]:
        ids = self._rng.integers(100, 40000, (sequences, tokens))
        return [{"prompt_token_ids": row} for row in ids.tolist()]

    def _seconds(self, prompts: list[dict[str, Any]], new: int) -> float:
        params = self._vllm.SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        self._llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin

    def prefill(self, tokens: int) -> list[float]:
        return [tokens / self._seconds(self._prompts(1, tokens), 1) for _ in range(REPEATS)]

    def decode(self, sequences: int, context: int, new: int) -> float:
        """The time of `new` tokens beyond the first."""
        prompts = self._prompts(sequences, context)
        first = self._seconds(prompts, 1)
        return sequences * new / (self._seconds(prompts, new + 1) - first)

    def logits(self, ids: list[int], output: str) -> str:
        """The likeliest tokens of each position; the last one comes from the token made after."""
        params = self._vllm.SamplingParams(
            temperature=0, max_tokens=1, prompt_logprobs=TOP, logprobs=TOP
        )
        (result,) = self._llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        rows = [*result.prompt_logprobs[1:], result.outputs[0].logprobs[0]]
        top = [sorted(row.items(), key=lambda item: -item[1].logprob)[:TOP] for row in rows]
        output = output.removesuffix(".npy") + ".npz"
        np.savez(
            output,
            ids=np.array([[token for token, _ in row] for row in top], np.int32),
            logprobs=np.array([[entry.logprob for _, entry in row] for row in top], np.float32),
        )
        return output
