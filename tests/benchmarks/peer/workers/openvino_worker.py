"""OpenVINO in process: the stateful model, or GenAI's continuous batching."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

REPEATS = 5
MARGIN = 24
PROPERTIES = {"INFERENCE_NUM_THREADS": 2}


def open_library(path: str, format: str, mode: str) -> Any:
    """Open a model folder; `mode` is "ir", "genai" or "logits"."""
    return _GenAI(path) if mode == "genai" else _Stateful(path, every_row=mode == "logits")


class _Stateful:
    """The model as exported, with its head computed for the last token alone."""

    def __init__(self, path: str, every_row: bool) -> None:
        ov: Any = import_module("openvino")
        core = ov.Core()
        model = core.read_model(f"{path}/openvino_model.xml")
        if not every_row:
            _last_row_only(model)
        latency = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        self._request = core.compile_model(
            model, "CPU", PROPERTIES | latency
        ).create_infer_request()
        self._inputs = {name for value in model.inputs for name in value.names}
        self._rng = np.random.default_rng()
        if not every_row:
            self.prefill(128)

    def _step(self, ids: np.ndarray, past: int) -> np.ndarray:
        sequences, tokens = ids.shape
        fed = {
            "input_ids": ids.astype(np.int64),
            "attention_mask": np.ones((sequences, past + tokens), np.int64),
            "position_ids": np.tile(np.arange(past, past + tokens), (sequences, 1)),
            "beam_idx": np.arange(sequences, dtype=np.int32),
        }
        fed = {name: value for name, value in fed.items() if name in self._inputs}
        return self._request.infer(fed, share_inputs=True, share_outputs=True)[0]

    def prefill(self, tokens: int) -> list[float]:
        speeds = []
        for _ in range(REPEATS):
            self._request.reset_state()
            ids = self._rng.integers(100, 40000, (1, tokens))
            begin = time.perf_counter()
            self._step(ids, 0)[:, -1].argmax(-1)
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        self._request.reset_state()
        ids = self._rng.integers(100, 40000, (sequences, context))
        last = self._step(ids, 0)[:, -1].argmax(-1)
        begin = time.perf_counter()
        for past in range(context, context + new):
            last = self._step(last[:, None], past)[:, -1].argmax(-1)
        return sequences * new / (time.perf_counter() - begin)

    def logits(self, ids: list[int], output: str) -> str:
        self._request.reset_state()
        rows = [self._step(np.array([[token]]), past)[0].copy() for past, token in enumerate(ids)]
        np.save(output, np.concatenate(rows).astype(np.float32))
        return output


class _GenAI:
    """ContinuousBatchingPipeline with prefix caching."""

    def __init__(self, path: str) -> None:
        self._ov: Any = import_module("openvino")
        self._genai: Any = import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = 256
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = True
        self._pipeline = self._genai.ContinuousBatchingPipeline(path, scheduler, "CPU", PROPERTIES)
        self._rng = np.random.default_rng()
        self._number = 0
        self.prefill(128)

    def _add(self, ids: list[int] | np.ndarray, new: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        self._number += 1
        tensor = self._ov.Tensor(np.array(ids, np.int64).reshape(1, -1))
        return self._pipeline.add_request(self._number, tensor, config)

    def prefill(self, tokens: int) -> list[float]:
        speeds = []
        for _ in range(REPEATS):
            ids = self._rng.integers(100, 40000, tokens)
            begin = time.perf_counter()
            handle = self._add(ids, 1)  # a request without a handle is dropped
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            assert _read(handle) == 1
            speeds.append(tokens / (time.perf_counter() - begin))
        return speeds

    def decode(self, sequences: int, context: int, new: int) -> float:
        """Speed of the `new` steps behind the last sequence's first token: all sequences run."""
        most = new + (MARGIN if sequences > 1 else 1)
        handles = [
            self._add(self._rng.integers(100, 40000, context), most) for _ in range(sequences)
        ]
        seen, first, last = np.zeros(sequences, int), (0.0, 0), (0.0, 0)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for i, handle in enumerate(handles):
                seen[i] += _read(handle)
            if seen.min() >= 1 and not first[1]:
                first = (now, int(seen.sum()))
            if seen.max() < most and seen.min() <= new + 1:
                last = (now, int(seen.sum()))
        return (last[1] - first[1]) / (last[0] - first[0])

    def load(
        self, prompts: list[list[int]], starts: list[float], concurrency: int, new: int
    ) -> list[dict[str, Any]]:
        """Answer prompts, so many at once, each not before its start; times are in seconds."""
        waiting, running, done = list(zip(prompts, starts, strict=True)), [], []
        begin = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < concurrency:
                now = time.perf_counter() - begin
                if waiting[0][1] > now:
                    break
                ids, start = waiting.pop(0)
                sent = max(start, 0.0) if concurrency >= len(prompts) else now
                handle = self._add(ids, new)
                running.append({"handle": handle, "sent": sent, "times": [], "tokens": 0})
            if not running:
                time.sleep(0.001)
                continue
            self._pipeline.step()
            now = time.perf_counter() - begin
            for request in list(running):
                got = _read(request["handle"])
                request["tokens"] += got
                request["times"] += [now] if got else []
                if request["tokens"] >= new:
                    running.remove(request)
                    del request["handle"]
                    done.append(request)
        return done


def _read(handle: Any) -> int:
    tokens = 0
    while handle.can_read():
        tokens += sum(len(output.generated_ids) for output in handle.read().values())
    return tokens


def _last_row_only(model: Any) -> None:
    """Cut the head's input to the last token, as a serving program would."""
    ops: Any = import_module("openvino.opset13")
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    most = np.iinfo(np.int64).max
    bounds = [ops.constant(np.array([x], np.int64)) for x in (-1, most, 1, 1)]
    last = ops.slice(node.input_value(0), *bounds)
    node.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
