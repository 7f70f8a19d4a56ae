"""Packed weights of an engine that is about to be replaced, if the new one would have the same."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ....runtime.artifact import hash_file, read_manifest
from ....runtime.errors import EngineError
from .calls import PackedWeight
from .isa import IsaLevel

_CODE = ("enginewright.builder", "enginewright.converters")  # what makes packed weights of files
_LIBRARIES = ("numpy", "ml_dtypes", "gguf")


def recipe(packed: Sequence[PackedWeight], level: IsaLevel, source: str) -> str:
    """Hash all that decides the weights file, in hex; `source` tells checkpoints apart."""
    digest = hashlib.sha256(source.encode())
    digest.update(repr((level.panel, level.lanes, level.offset, _versions())).encode())
    for item in packed:
        weight = item.weight
        parts = [part.name for part in weight.parts]
        facts = (weight.name, parts, weight.sizes, weight.format, weight.group, weight.rotation)
        digest.update(repr((*facts, item.offset, dataclasses.astuple(item.layout))).encode())
    return digest.hexdigest()


def take_file(engine: Path | None, output: Path, wanted: str) -> bool:
    """Link or copy the file of the same name from `engine` if it was made by the recipe `wanted`.

    False where there is none, or where the file is no longer what the engine's manifest says.
    """
    if engine is None:
        return False
    try:
        manifest = read_manifest(engine)
        name = output.name
        if manifest.recipes.get(name) != wanted:
            return False
        try:
            os.link(engine / name, output, follow_symlinks=False)
        except OSError:  # a file system without links
            shutil.copyfile(engine / name, output)
        if hash_file(output) == manifest.files[name].sha256:
            return True
        output.unlink()
    except (EngineError, OSError, KeyError):
        output.unlink(missing_ok=True)
    return False


def _versions() -> list[str]:
    """Return a hash of our own code, and the versions of the libraries that it packs with."""
    digest = hashlib.sha256()
    for package in _CODE:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    found = [digest.hexdigest()]
    for library in _LIBRARIES:
        try:
            found.append(importlib.metadata.version(library))
        except importlib.metadata.PackageNotFoundError:
            found.append("none")
    return found
