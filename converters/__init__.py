"""Checkpoints of every origin, read lazily into canonical names."""

from __future__ import annotations

from .checkpoint import Checkpoint, Tensor
from .readers import open_checkpoint

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]
