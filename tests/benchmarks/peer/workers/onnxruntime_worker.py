"""ONNX Runtime GenAI in process: static batches."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

REPEATS = 3


def open_library(path: str, format: str, mode: str) -> Any:
    """Open a built model."""
    return _Model(path)


class _Model:
    def __init__(self, path: str) -> None:
        self._og: Any = import_module("onnxruntime_genai")
        config = self._og.Config(path)
        threads = '{"model": {"decoder": {"session_options": {"intra_op_num_threads": 2}}}}'
        config.overlay(threads)
        self._model = self._og.Model(config)
        self._rng = np.random.default_rng()
        self.prefill(128)

    def _start(self, ids: np.ndarray, new: int) -> Any:
        params = self._og.GeneratorParams(self._model)
        length = ids.shape[1] + new
        params.set_search_options(
            batch_size=len(ids), max_length=length, min_length=length, do_sample=False
        )
        generator = self._og.Generator(self._model, params)
        generator.append_tokens(ids.astype(np.int32))
        return generator

    def prefill(self, tokens: int) -> list[float]:
        speeds = []
        for _ in range(REPEATS):
            ids = self._rng.integers(100, 40000, (1, tokens))
            begin = time.perf_counter()
            self._start(ids, 1).generate_next_token()
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        generator = self._start(self._rng.integers(100, 40000, (sequences, context)), new + 1)
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(new):
            generator.generate_next_token()
        return sequences * new / (time.perf_counter() - begin)

    def logits(self, ids: list[int], output: str) -> str:
        generator = self._start(np.array([ids]), 1)
        rows = np.array(generator.get_output("logits")).astype(np.float32)
        if rows.shape[1] != len(ids):
            generator, one = self._start(np.array([ids[:1]]), len(ids)), []
            one.append(np.array(generator.get_output("logits"))[0, -1])
            for token in ids[1:]:
                generator.append_tokens(np.array([[token]], np.int32))
                one.append(np.array(generator.get_output("logits"))[0, -1])
            rows = np.array([one], np.float32)
        np.save(output, rows[0])
        return output
