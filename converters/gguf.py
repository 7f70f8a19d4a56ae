"""Opens a GGUF file: names mapped, weights dequantized on load, tokenizer rebuilt from metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..builder.model_config import ModelConfig
from .checkpoint import Checkpoint, Tensor
from .families import by_gguf_architecture
from .families.base import Family
from .fields import Fields
from .gguf_config import model_config
from .gguf_file import read_gguf
from .gguf_tokenizer import write_gguf_tokenizer
from .mapped_file import MappedFile
from .mapping import NameTable, map_tensors


class GgufCheckpoint(Checkpoint):
    """A GGUF file, mapped."""

    def __init__(
        self,
        file: MappedFile,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        metadata: Fields,
    ) -> None:
        super().__init__(file.path.name, config, tensors, [file], [file.path])
        self._metadata = metadata

    def write_tokenizer(self, folder: Path) -> None:
        """Rebuild the tokenizer from the metadata and write its three files."""
        write_gguf_tokenizer(self._metadata, self.config, folder)


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file; CheckpointError or UnsupportedModelError when it cannot be converted."""
    file = MappedFile(path)
    try:
        contents = read_gguf(file)
        metadata = Fields(contents.metadata, str(path))
        architecture = metadata.text("general.architecture")
        family = by_gguf_architecture(architecture, str(path))
        config = model_config(metadata, contents.tensors, architecture)
        table = NameTable(family.rules, lambda rule: rule.gguf, family.gguf_extras)
        tensors = map_tensors(contents.tensors, table, config, str(path))
    except BaseException:
        file.close()
        raise
    return GgufCheckpoint(file, config, _half_split(tensors, config, family), metadata)


def _half_split(
    tensors: dict[str, Tensor], config: ModelConfig, family: Family
) -> dict[str, Tensor]:
    """`tensors` with q and k rows in the order of half-split rotation."""
    if not family.gguf_rotary_interleaved:
        return tensors
    for name, tensor in tensors.items():
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            if f".attention.{part}." in name:
                tensors[name] = _unpermuted(tensor, heads)
    return tensors


def _unpermuted(tensor: Tensor, num_heads: int) -> Tensor:
    def read() -> np.ndarray:
        return split_halves(tensor.read().reshape(tensor.shape), num_heads)

    return replace(tensor, read=read)


def split_halves(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of every head from (0, d/2, 1, d/2 + 1, ...) back to 0 ... d - 1.

    `values` is [num_heads * d, ...]; llama.cpp's converter interleaves Llama's q and k so that
    rotation can work on adjacent pairs.
    """
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
