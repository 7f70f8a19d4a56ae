"""The reference interpreter: runs any network, plain or lowered; the judge of all the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.session import Batch
from .network import Network, Value, Weight
from .reference_kv import BLOCK_TOKENS, ReferenceKv, StepFacts
from .reference_ops import CACHE_MEANINGS, MEANINGS

__all__ = ["BLOCK_TOKENS", "Reference"]


class Reference:
    """One network and its KV cache, stepped like a session.

    Weights are f32, or with `fake_quantize` rounded to the format that they carry; `kv_dtype` is
    what the cache rounds to, with `rotate_keys` as a CPU engine does. The first step reads one
    weight at a time and keeps none; from the second step on they are kept, so that one long prompt
    costs no memory and many steps no time.
    """

    def __init__(
        self,
        network: Network,
        kv_dtype: str = "f32",
        *,
        fake_quantize: bool = False,
        rotate_keys: bool = True,
    ) -> None:
        self._network = network
        self._fake_quantize = fake_quantize
        self._kv = ReferenceKv(kv_dtype, rotate_keys=rotate_keys)
        self._weights: dict[Weight, npt.NDArray[Any]] = {}
        self._keep_weights = False
        self._max_seq_len = self._longest_sequence()
        self._last_use = {
            value: node
            for node in network.nodes
            for value in (*node.inputs, *node.outputs)
            if value is not None and not network.is_output(value)
        }

    def step(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Compute the batch and return the logits of the rows it wants, [rows, vocab].

        Raises ValueError for a batch that contradicts itself or has ids outside the vocabulary.
        """
        ids, vocab = batch.token_ids, self._network.config.vocab_size
        if np.any(ids < 0) or np.any(ids >= vocab):
            raise ValueError(f"token ids must be from 0 to {vocab - 1}")
        facts = StepFacts(batch, self._max_seq_len)
        given = {"ids": ids, "batch": facts}
        held: dict[Value, Any] = {value: given[value.name] for value in self._network.inputs}
        for node in self._network.nodes:
            inputs = [self._operand(value, held) for value in node.inputs]
            if node.op in CACHE_MEANINGS:
                result = CACHE_MEANINGS[node.op](*inputs, node.attrs, kv=self._kv)
            else:
                result = MEANINGS[node.op](*inputs, node.attrs)
            held[node.output] = result
            for value in (*node.inputs, node.output):
                if value is not None and self._last_use.get(value) is node:
                    held.pop(value, None)
        self._keep_weights = True
        return held[self._network.outputs[0]]

    def _operand(self, value: Value | None, held: dict[Value, Any]) -> Any:
        if value is None:
            return None
        return self._weight(value) if isinstance(value, Weight) else held[value]

    def _weight(self, weight: Weight) -> npt.NDArray[Any]:
        array = self._weights.get(weight)
        if array is None:
            array = weight.load()
            if self._fake_quantize and weight.format != "f32":
                from .quantize.weight_only import fake_quantize

                array = fake_quantize(array, weight.format, weight.group, weight.rotation)
            if self._keep_weights:
                self._weights[weight] = array
        return array

    def _longest_sequence(self) -> int:
        tables = [node.inputs[1] for node in self._network.nodes if node.op == "rope"]
        sizes = [int(table.shape[0]) for table in tables if table is not None]
        return min(sizes, default=self._network.config.max_position_embeddings)
