"""Compilers that check what native code does, and a tiny model with a real tokenizer for them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from enginewright.converters.gguf_file import read_gguf
from enginewright.converters.mapped_file import MappedFile

from .gguf import write_gguf
from .tiny import make_tiny_config, make_tiny_weights

UNDEFINED = "-fsanitize=undefined -fsanitize-trap=undefined"
LEVEL = "avx2"  # valgrind knows nothing newer, and for AVX-512 gcc takes three times as long

_ZIG = f"{sys.executable} -m ziglang cc -target x86_64-linux-gnu.2.28 -mcpu=x86_64_v3"
_COMMANDS = {  # the last flags win
    "undefined": f'exec {_ZIG} "$@" {UNDEFINED}',
    "address": 'exec gcc -march=x86-64-v3 "$@" -O1 -g -fsanitize=address -fno-omit-frame-pointer',
    "valgrind": f'exec {_ZIG} "$@" -O1 -g -gdwarf-4',
}


def write_compiler(kind: str, folder: Path) -> Path:
    """Write a command for `enginewright build --isa avx2 --cc`: undefined, address or valgrind.

    It leaves the checks that its caller runs under, and drops -march, which zig does not know.
    """
    path = folder / f"{kind}-cc"
    path.write_text(
        "#!/bin/sh\nunset LD_PRELOAD\nfor argument; do\n    shift\n"
        '    case $argument in -march=*) continue ;; esac\n    set -- "$@" "$argument"\ndone\n'
        f"{_COMMANDS[kind]}\n"
    )
    path.chmod(0o755)
    return path


def checked_environment(kind: str) -> dict[str, str] | None:
    """Return what a program needs that loads code of this kind; None where the machine lacks it."""
    if kind != "address":
        return {}
    if shutil.which("gcc") is None:
        return None
    command = ["gcc", "-print-file-name=libasan.so"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(library).is_absolute():
        return None
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}  # Python's own are no news


def write_tiny_model(path: Path, like: Path) -> Path:
    """Write a GGUF file of random weights with tokenizer and chat template of another one."""
    file = MappedFile(like)
    found = read_gguf(file).metadata
    file.close()
    metadata = {key: value for key, value in found.items() if key.startswith("tokenizer.")}
    config = make_tiny_config(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=48,
        intermediate_size=80,
        num_layers=2,
        max_position_embeddings=8192,
    )
    return write_gguf(path, config, make_tiny_weights(config, seed=3), metadata=metadata)
