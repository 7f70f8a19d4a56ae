"""ONNX Runtime GenAI with int4 weights; its builder needs transformers' environment."""

from __future__ import annotations

import shutil
from pathlib import Path

from .base import Peer, run
from .models import Model


class OnnxRuntimeGenAI(Peer):
    """Static batches; it has no server."""

    name = "onnxruntime-genai"
    requirements = (
        "onnxruntime-genai==0.18.0",
        "onnxruntime==1.32.0",
        "onnx==1.19.1",
        "onnx-ir==0.1.12",
        "transformers==5.5.4",
        "torch==2.13.0+cpu",
    )
    formats = ("int4",)
    worker = "onnxruntime_worker"

    def weights(self, model: Model, fmt: str) -> Path:
        """Build its model from the Hugging Face folder."""
        self.install()
        folder = model.folder / f"onnxruntime-{fmt}"
        if not (folder / "genai_config.json").is_file():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [str(self.python), "-m", "onnxruntime_genai.models.builder"]
            command += ["-m", str(model.hugging_face), "-o", str(partial), "-p", fmt, "-e", "cpu"]
            run([*command, "-c", str(model.folder / "onnxruntime-cache")], seconds=1800)
            partial.rename(folder)
        return folder
