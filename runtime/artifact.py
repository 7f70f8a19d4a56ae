"""The engine folder on disk: its files, their hashes, and whether they are as the manifest says."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from .errors import EngineDamagedError, EngineError
from .manifest import (
    MANIFEST_FILE,
    FileFacts,
    Manifest,
    check_file_name,
    decode_manifest,
    encode_manifest,
)

ENGINE_FILE = "rank0.engine"
WEIGHTS_FILE = "rank0.weights"
TOKENIZER_FOLDER = "tokenizer"
REQUIRED_FILES = (ENGINE_FILE, WEIGHTS_FILE)  # of a CPU engine; a plan may hold its weights

_SMALL_FILE_BYTES = 4 << 20  # up to here a fast check hashes too: a few milliseconds
_MAX_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20

Verify = Literal["fast", "full"]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine folder whose manifest was read and whose files are as the manifest says."""

    folder: Path
    manifest: Manifest

    @property
    def engine_path(self) -> Path:
        """The compiled code."""
        return self.folder / ENGINE_FILE

    @property
    def weights_path(self) -> Path:
        """The packed weights."""
        return self.folder / WEIGHTS_FILE

    @property
    def tokenizer_folder(self) -> Path:
        """Tokenizer, chat template and generation defaults; absent in an engine without them."""
        return self.folder / TOKENIZER_FOLDER


def open_engine(path: str | Path, verify: Verify = "fast") -> Engine:
    """Open an engine folder and check its files against the manifest.

    `fast` compares the set of files and their sizes, and the hashes of those up to 4 MiB; `full`
    compares every hash. Raises EngineError, EngineDamagedError or EngineVersionError.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    required = REQUIRED_FILES if manifest.target.tensorrt is None else (ENGINE_FILE,)
    for name in required:
        if name not in manifest.files:
            raise EngineDamagedError(
                f"{folder / MANIFEST_FILE} does not list {name}; build the engine again"
            )
    try:
        for name, facts in manifest.files.items():
            _check_file(folder, name, facts, verify)
        for name in list_files(folder):
            if name not in manifest.files:
                raise EngineDamagedError(
                    f"{folder / name} is not one of the engine's files; remove it or build the "
                    "engine again"
                )
    except OSError as error:
        raise EngineError(f"the engine {folder} cannot be read: {error}") from error
    return Engine(folder, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Read `engine.json` alone, without looking at the other files. Raises as `open_engine`."""
    path = folder / MANIFEST_FILE
    try:
        if not path.is_file():
            raise EngineError(_no_engine(folder))
        size = path.stat().st_size
        if size > _MAX_MANIFEST_BYTES:
            raise EngineDamagedError(
                f"{path} has {size} bytes, expected at most {_MAX_MANIFEST_BYTES}; "
                "build the engine again"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error
    return decode_manifest(data)


def write_engine(folder: Path, manifest: Manifest) -> Manifest:
    """Hash every file in `folder`, write `engine.json` with the hashes, and return what it says."""
    files: dict[str, FileFacts] = {}
    for name in sorted(list_files(folder)):
        check_file_name(name)
        path = folder / name
        files[name] = FileFacts(sha256=hash_file(path), bytes=path.stat().st_size)
    manifest = msgspec.structs.replace(manifest, files=files)
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `engine.json`, replacing the one that is there in one step."""
    temporary = folder / f".{MANIFEST_FILE}"
    temporary.write_bytes(encode_manifest(manifest))
    temporary.replace(folder / MANIFEST_FILE)


def list_files(folder: Path) -> Iterator[str]:
    """Yield the engine's files other than the manifest, as posix paths relative to the folder.

    Names that begin with a dot are what file systems and desktops leave behind, and are skipped.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            relative = (Path(parent) / name).relative_to(folder).as_posix()
            if not name.startswith(".") and relative != MANIFEST_FILE:
                yield relative


def hash_file(path: Path) -> str:
    """Return the sha256 of a file in hex, reading it in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _check_file(folder: Path, name: str, facts: FileFacts, verify: Verify) -> None:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise EngineDamagedError(
            f"{path} leads outside the engine folder; copy the file in place of the link"
        )
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineDamagedError(
            f"{path} is missing; copy the engine again or build it again"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise EngineDamagedError(f"{path} is not a regular file; build the engine again")
    if status.st_size != facts.bytes:
        raise EngineDamagedError(
            f"{path} has {status.st_size} bytes, expected {facts.bytes}; "
            "copy the engine again or build it again"
        )
    if verify == "full" or facts.bytes <= _SMALL_FILE_BYTES:
        found = hash_file(path)
        if found != facts.sha256:
            raise EngineDamagedError(
                f"{path} was changed since the build: its sha256 is {found[:12]}..., expected "
                f"{facts.sha256[:12]}...; copy the engine again or build it again"
            )


def _no_engine(folder: Path) -> str:
    if not folder.exists():
        return f"there is no engine at {folder}; build one with `enginewright build`"
    if not folder.is_dir():
        return f"{folder} is a file, expected an engine folder"
    return f"{folder} is not an engine: it has no {MANIFEST_FILE}; build one there first"
