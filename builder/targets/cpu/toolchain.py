"""The C compiler: `ziglang` from PyPI unless another one is named. It runs beside the build."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from types import TracebackType

from ....runtime.errors import BuildError
from .code_cache import CodeCache
from .isa import IsaLevel

GLIBC = "2.28"  # the oldest C library that an engine asks for

COMMON_FLAGS = (
    "-std=gnu11",
    "-D_GNU_SOURCE",  # for the affinity of threads
    "-O3",
    "-g0",  # zig adds tables for debuggers unasked: a quarter of its time, most of the file
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


class Compilation:
    """One emitted C file on its way to the shared object `output`; a context that ends with it.

    `cc` is a compiler command of the user's (gcc or clang), None the bundled one. Code that `cache`
    holds is taken from there. Raises BuildError if there is no such compiler.
    """

    def __init__(
        self,
        source: Path,
        output: Path,
        level: IsaLevel,
        arch: str,
        cc: str | None,
        extra: tuple[str, ...] = (),
        cache: CodeCache | None = None,
    ) -> None:
        self._output, self._cache, self._key = output, cache, ""
        if cc is None:
            compiler = _zig()
            machine = ["-target", f"{arch}-linux-gnu.{GLIBC}", f"-mcpu={level.zig_cpu}"]
            machine += ["-fno-sanitize=undefined"]  # zig turns it on by itself in some modes
        else:
            compiler = shlex.split(cc)
            machine = list(level.gcc_flags)
        defines = [f"-D{macro}" for macro in level.macros]
        command = [*compiler, *machine, *COMMON_FLAGS, *defines]
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="enginewright-cc-")
        self._log = Path(self._scratch.name) / "log"
        try:
            if cache is not None:
                files = [source, *kernel_headers()]
                self._key = _key([*command, *extra], _identity(cc, compiler), files)
                if cache.take(self._key, output):
                    return
            command += [f"-I{_kernel_folder()}", *extra, str(source), "-o", str(output)]
            self._start(command, bundled=cc is None)
        except BaseException:
            self._scratch.cleanup()
            raise

    def _start(self, command: list[str], bundled: bool) -> None:
        environment = dict(os.environ)
        if bundled:
            environment["ZIG_LOCAL_CACHE_DIR"] = self._scratch.name
            if not _cache_is_usable(environment):
                environment["ZIG_GLOBAL_CACHE_DIR"] = self._scratch.name
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    process_group=0,  # so that its own children end with it
                )
            except OSError as error:
                raise BuildError(
                    f"the C compiler {command[0]!r} cannot be started ({error.strerror}); "
                    "install enginewright[build] or name another one with --cc"
                ) from error

    def finish(self) -> None:
        """Wait for the compiler. Raises BuildError with its own first lines when it failed."""
        if self._process is None:
            return
        status = self._process.wait()
        if status:
            text = self._log.read_text(errors="replace")
            lines = [line for line in text.splitlines() if line.strip()][:8]
            raise BuildError(f"the C compiler ended with status {status}:\n" + "\n".join(lines))
        if self._cache is not None:
            self._cache.put(self._key, self._output)

    def __enter__(self) -> Compilation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End a compiler that nobody waits for any more, and remove what it has left."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._scratch.cleanup()


def compile_engine(
    source: Path,
    output: Path,
    level: IsaLevel,
    arch: str,
    cc: str | None,
    extra: tuple[str, ...] = (),
) -> None:
    """Compile one C file and wait for it, as Compilation does, without a cache."""
    with Compilation(source, output, level, arch, cc, extra) as compilation:
        compilation.finish()


def kernel_headers() -> list[Path]:
    """Return the kernels' source files, in order."""
    return sorted(_kernel_folder().glob("*.h"))


def _kernel_folder() -> Path:
    return Path(str(resources.files("enginewright.plugins") / "cpu"))


def _key(command: list[str], identity: str, files: list[Path]) -> str:
    """Hash all that decides the compiler's output, in hex."""
    digest = hashlib.sha256(repr((command, identity)).encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _identity(cc: str | None, compiler: list[str]) -> str:
    """Return what tells one version of a compiler from another."""
    if cc is None:
        return importlib.metadata.version("ziglang")
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, check=False)
    except OSError:
        return ""  # starting it says what is wrong
    return done.stdout.decode(errors="replace")


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
