"""OpenVINO and OpenVINO GenAI, with weights read from GGUF or exported by Optimum."""

from __future__ import annotations

import shutil
from pathlib import Path

from .base import Peer, PeerError, run
from .llama_cpp import LlamaCpp
from .models import Model


class _Optimum(Peer):
    """Only exports; measured is what it wrote."""

    name = "optimum"
    requirements = (
        "optimum-intel==2.2.0",
        "nncf==3.4.0",
        "openvino==2026.4.1",
        "transformers==5.5.4",
        "torch==2.13.0+cpu",
    )
    formats = ("int8",)

    def after_install(self) -> None:
        """Remove torchvision, which is of another torch than the one installed."""
        run([str(self.python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"])

    def weights(self, model: Model, fmt: str) -> Path:
        """Export the Hugging Face folder with int8 weights."""
        self.install()
        folder = model.folder / "openvino-int8"
        if not (folder / "openvino_model.xml").is_file():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            program = str(self.folder / "bin" / "optimum-cli")
            task = "--task text-generation-with-past --weight-format int8"
            command = [program, "export", "openvino", "-m", str(model.hugging_face)]
            run([*command, *task.split(), str(partial)], seconds=1800)
            partial.rename(folder)
        return folder


class OpenVino(Peer):
    """The stateful model with a static batch ("ir"), and GenAI's continuous batching ("genai")."""

    name = "OpenVINO"
    requirements = ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "numpy==2.4.6")
    formats = ("Q8_0", "int8", "Q4_0")
    quick_formats = ("Q8_0",)
    paths = ("ir", "genai")
    worker = "openvino_worker"
    http_note = "in process: no HTTP, JSON or detokenizing, so an upper bound"

    def weights(self, model: Model, fmt: str) -> Path:
        """Return the folder of its model; GenAI reads GGUF and saves what it made of it."""
        if fmt == "int8":
            return _Optimum().weights(model, fmt)
        self.install()
        folder = model.folder / f"openvino-{fmt}"
        if not (folder / "openvino_model.xml").is_file():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            shutil.copy(LlamaCpp().weights(model, fmt), partial / "model.gguf")
            code = "import sys, openvino_genai as g; "
            code += "g.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)"
            run([str(self.python), "-c", code, str(partial / "model.gguf")], seconds=600)
            (partial / "model.gguf").unlink()
            if not (partial / "openvino_model.xml").is_file():
                raise PeerError("OpenVINO GenAI saved no model of the GGUF file")
            partial.rename(folder)
        return folder
