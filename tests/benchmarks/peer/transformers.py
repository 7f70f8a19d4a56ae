"""Hugging Face transformers with PyTorch."""

from __future__ import annotations

from pathlib import Path

from .base import Peer
from .models import Model


class Transformers(Peer):
    """Forward passes with a cache, and `transformers serve`, in bf16."""

    name = "transformers"
    requirements = (
        "transformers[serving]==5.24.0",
        "torch==2.13.0+cpu",
        "safetensors==0.8.0",
        "accelerate==1.15.0",
    )
    formats = ("bf16", "f32")
    worker = "transformers_worker"
    http_note = "HTTP server; it refuses ignore_eos, so that answers may be shorter"

    def environment(self) -> dict[str, str]:
        """Two threads, and nothing from a hub."""
        return {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}

    def weights(self, model: Model, fmt: str) -> Path:
        """It reads the Hugging Face folder and rounds to bf16 itself."""
        return model.hugging_face

    def server_command(self, fmt: str, port: int) -> list[str] | None:
        """With continuous batching, in bf16."""
        if fmt != "bf16":
            return None
        program = [str(self.folder / "bin" / "transformers"), "serve", str(self.path_of(fmt))]
        options = "--continuous-batching --dtype bfloat16 --device cpu --host 127.0.0.1"
        options += " --cb-num-blocks 64 --cb-max-batch-tokens 512 --port"
        return [*program, *options.split(), str(port)]
