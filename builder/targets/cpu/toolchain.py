"""The C compiler: `ziglang` from PyPI unless another one is named."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from ....runtime.errors import BuildError
from .isa import IsaLevel

GLIBC = "2.28"  # the oldest C library that an engine asks for

COMMON_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",  # a fused multiply-add is written where it is meant, nowhere else
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",
)


def compile_engine(
    source: Path,
    output: Path,
    level: IsaLevel,
    arch: str,
    cc: str | None,
    extra: tuple[str, ...] = (),
) -> None:
    """Compile one emitted C file into the shared object `output`.

    `cc` is a compiler command of the user's (gcc or clang), None the bundled one. Raises BuildError
    with the compiler's own first lines when it fails.
    """
    headers = str(resources.files("enginewright.plugins") / "cpu")
    defines = [f"-D{macro}" for macro in level.macros]
    if cc is None:
        compiler = _zig()
        machine = ["-target", f"{arch}-linux-gnu.{GLIBC}", f"-mcpu={level.zig_cpu}"]
        machine += ["-fno-sanitize=undefined"]  # zig turns it on by itself in some modes
    else:
        compiler = shlex.split(cc)
        machine = list(level.gcc_flags)
    command = [*compiler, *machine, *COMMON_FLAGS, *defines, f"-I{headers}", *extra]
    command += [str(source), "-o", str(output)]
    with tempfile.TemporaryDirectory(prefix="enginewright-cc-") as cache:
        environment = dict(os.environ)
        if cc is None and not _cache_is_usable(environment):
            environment["ZIG_GLOBAL_CACHE_DIR"] = cache
        if cc is None:
            environment["ZIG_LOCAL_CACHE_DIR"] = cache
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False
            )
        except OSError as error:
            raise BuildError(
                f"the C compiler {compiler[0]!r} cannot be started ({error.strerror}); "
                "install enginewright[build] or name another one with --cc"
            ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][:8]
        raise BuildError(
            f"the C compiler ended with status {done.returncode}:\n" + "\n".join(lines)
        )


def _zig() -> list[str]:
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError(
            "the C compiler package 'ziglang' is not installed; install enginewright[build] or "
            "name another compiler with --cc"
        )
    return [sys.executable, "-m", "ziglang", "cc"]


def _cache_is_usable(environment: dict[str, str]) -> bool:
    """Whether zig can keep its own cache (its C library stubs) between builds."""
    if "ZIG_GLOBAL_CACHE_DIR" in environment:
        return True
    home = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/")) / ".cache")
    probe = next((folder for folder in (home, *home.parents) if folder.exists()), Path("/"))
    return os.access(probe, os.W_OK)
