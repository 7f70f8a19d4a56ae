"""CTranslate2 in process: static batches."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

REPEATS = 3


def open_library(path: str, format: str, mode: str) -> Any:
    """Open a converted model."""
    return _Generator(path)


class _Generator:
    def __init__(self, path: str) -> None:
        self._ct2: Any = import_module("ctranslate2")
        self._generator = self._ct2.Generator(path, device="cpu", intra_threads=2)
        self._tokens = import_module("json").loads((Path(path) / "vocabulary.json").read_text())
        self._rng = np.random.default_rng()
        self.prefill(128)

    def _prompts(self, sequences: int, tokens: int) -> list[list[str]]:
        ids = self._rng.integers(100, 40000, (sequences, tokens))
        return [[self._tokens[i] for i in row] for row in ids]

    def _seconds(self, prompts: list[list[str]], new: int) -> float:
        begin = time.perf_counter()
        self._generator.generate_batch(
            prompts,
            max_length=new,
            min_length=new,
            include_prompt_in_result=False,
            sampling_topk=1,
            end_token=[],
        )
        return time.perf_counter() - begin

    def prefill(self, tokens: int) -> list[float]:
        return [tokens / self._seconds(self._prompts(1, tokens), 1) for _ in range(REPEATS)]

    def decode(self, sequences: int, context: int, new: int) -> float:
        """The time of `new` tokens beyond the first."""
        prompts = self._prompts(sequences, context)
        first = self._seconds(prompts, 1)
        return sequences * new / (self._seconds(prompts, new + 1) - first)

    def logits(self, ids: list[int], output: str) -> str:
        tokens = [[self._tokens[i] for i in ids]]
        result = self._generator.forward_batch(tokens, return_log_probs=False)
        np.save(output, np.array(result)[0].astype(np.float32))
        return output
