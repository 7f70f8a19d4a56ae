"""What every reader yields: a model's config, its lazily read tensors and its tokenizer files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ..builder.model_config import ModelConfig
from .mapped_file import MappedFile, sha256


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint; its values are read when `load` is called, and never kept."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as stored: F32, BF16, Q4_1 ...
    read: Callable[[], np.ndarray]

    def load(self) -> np.ndarray:
        """Read the values as a new float32 array of `shape`."""
        values = self.read()
        return np.ascontiguousarray(values, dtype=np.float32).reshape(self.shape)


class Checkpoint(ABC):
    """An open checkpoint; `tensors` holds every canonical name that `config` implies, and no other.

    `source` names the checkpoint for people. It is a context manager: leaving it unmaps the files.
    """

    def __init__(
        self,
        source: str,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        mapped: Sequence[MappedFile],
        paths: Sequence[Path],
    ) -> None:
        self.source = source
        self.config = config
        self.tensors = tensors
        self._mapped = mapped
        self._paths = paths
        self._hashes: dict[str, str] | None = None

    @property
    def files(self) -> Mapping[str, str]:
        """File name -> sha256 of every file the checkpoint consists of; hashed on first use."""
        if self._hashes is None:
            self._hashes = {path.name: sha256(path) for path in self._paths}
        return self._hashes

    @property
    def size_bytes(self) -> int:
        """Bytes of the weight files as stored."""
        return sum(file.size for file in self._mapped)

    @abstractmethod
    def write_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder`.

        The folder is made when missing. A chat template stands in tokenizer_config.json, or
        beside it in chat_template.jinja. Raises CheckpointError when there is no usable tokenizer.
        """

    def close(self) -> None:
        """Unmap the files; tensors cannot be loaded afterwards."""
        for file in self._mapped:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
