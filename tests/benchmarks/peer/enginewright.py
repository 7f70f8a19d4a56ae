"""enginewright itself: the session alone, and the executor process with its scheduler."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .base import Peer, run
from .models import CACHE, ROOT, Model


class Enginewright(Peer):
    """Runs in this environment; engines are kept until the code that builds them changes."""

    name = "enginewright"
    formats = ("int8", "int4", "bf16")
    quick_formats = ("int8", "int4")
    paths = ("executor", "session")
    worker = "enginewright_worker"

    @property
    def python(self) -> Path:
        """This interpreter."""
        return Path(sys.executable)

    @property
    def version(self) -> str:
        """Of the working tree."""
        return "enginewright (working tree)"

    def install(self) -> None:
        """There is nothing to install."""

    def weights(self, model: Model, fmt: str) -> Path:
        """Build the engine, or reuse one that is newer than every source of the builder."""
        engine = CACHE / "peers" / "models" / "engines" / f"{model.name}-{fmt}"
        manifest = engine / "engine.json"
        folders = ("builder", "plugins", "converters", "runtime")
        newest = max(
            path.stat().st_mtime
            for folder in folders
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".h")
        )
        if not manifest.is_file() or manifest.stat().st_mtime < newest:
            engine.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "enginewright", "build", str(model.gguf)]
            run([*command, "-o", str(engine), "--quant", fmt, "--overwrite"], seconds=900)
        return engine

    def server_command(self, fmt: str, port: int) -> list[str]:
        """Its own server with two threads."""
        command = [sys.executable, "-m", "enginewright", "serve", str(self.path_of(fmt))]
        return [*command, "--threads", "2", "--kv-cache-memory", "2GiB", "--port", str(port)]

    def self_check(self, fmt: str) -> str:
        """Return what the build itself found of the quality, for the report."""
        manifest = json.loads((self.path_of(fmt) / "engine.json").read_text())
        return str(manifest.get("self_check"))
