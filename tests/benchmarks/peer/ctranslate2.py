"""CTranslate2 with int8 weights; its converter runs in an environment of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from .base import Peer, run
from .models import Model


class CTranslate2(Peer):
    """Static batches; it has no server."""

    name = "CTranslate2"
    requirements = ("ctranslate2==4.8.5", "transformers==5.5.4", "torch==2.13.0+cpu")
    formats = ("int8",)
    worker = "ctranslate2_worker"

    def weights(self, model: Model, fmt: str) -> Path:
        """Convert the Hugging Face folder."""
        self.install()
        folder = model.folder / f"ctranslate2-{fmt}"
        if not (folder / "model.bin").is_file():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            program = str(self.folder / "bin" / "ct2-transformers-converter")
            command = [program, "--model", str(model.hugging_face), "--output_dir", str(partial)]
            run([*command, "--quantization", fmt], seconds=1800)
            partial.rename(folder)
        return folder
