"""transformers in process: forward passes with a cache."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

REPEATS = 3


def open_library(path: str, format: str, mode: str) -> Any:
    """Open the Hugging Face folder in bf16 or f32."""
    return _Model(path, format)


class _Model:
    def __init__(self, path: str, format: str) -> None:
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(2)
        dtype = {"bf16": self._torch.bfloat16, "f32": self._torch.float32}[format]
        auto: Any = import_module("transformers").AutoModelForCausalLM
        self._model = auto.from_pretrained(path, dtype=dtype).eval()
        self._rng = np.random.default_rng()
        self.prefill(128)

    def _step(self, ids: Any, cache: Any, rows: int = 1) -> tuple[Any, Any]:
        with self._torch.inference_mode():
            out = self._model(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=rows
            )
        return out.logits, out.past_key_values

    def _random(self, sequences: int, tokens: int) -> Any:
        return self._torch.from_numpy(self._rng.integers(100, 40000, (sequences, tokens)))

    def prefill(self, tokens: int) -> list[float]:
        speeds = []
        for _ in range(REPEATS):
            ids = self._random(1, tokens)
            begin = time.perf_counter()
            self._step(ids, None)[0].argmax(-1)
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        logits, cache = self._step(self._random(sequences, context), None)
        begin = time.perf_counter()
        for _ in range(new):
            logits, cache = self._step(logits[:, -1].argmax(-1, keepdim=True), cache)
        return sequences * new / (time.perf_counter() - begin)

    def logits(self, ids: list[int], output: str) -> str:
        rows, _ = self._step(self._torch.tensor([ids]), None, rows=0)
        np.save(output, rows[0].float().numpy())
        return output
