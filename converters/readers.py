"""Chooses the reader of a checkpoint by looking at it."""

from __future__ import annotations

from pathlib import Path

from ..runtime.errors import CheckpointError
from . import hub
from .checkpoint import Checkpoint
from .fields import Fields
from .huggingface import open_huggingface
from .trtllm import is_trtllm, open_trtllm


def open_checkpoint(path_or_hub_name: str) -> Checkpoint:
    """Open a Hugging Face folder, a TensorRT-LLM checkpoint, a GGUF file or folder, or a hub model.

    Weights stay unread until a tensor is loaded. Raises CheckpointError with one sentence when
    there is no such checkpoint or it is damaged, UnsupportedModelError when it is sound but of a
    kind that is not supported.
    """
    path = Path(path_or_hub_name)
    if path.is_file():
        return _open_gguf(path)
    if path.is_dir():
        return _open_folder(path)
    if hub.is_hub_name(path_or_hub_name):
        return open_huggingface(hub.fetch(path_or_hub_name), path_or_hub_name)
    raise CheckpointError(
        f"{path_or_hub_name} does not exist; expected a model folder, a .gguf file, "
        "or a hub name such as OWNER/MODEL."
    )


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").exists():
        if is_trtllm(Fields.from_json(folder / "config.json")):
            return open_trtllm(folder)
        return open_huggingface(folder, folder.resolve().name)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return _open_gguf(files[0])
    found = f"{len(files)} GGUF files" if files else "no GGUF file"
    raise CheckpointError(
        f"{folder} has no config.json and {found}; expected a Hugging Face folder "
        "or exactly one GGUF file."
    )


def _open_gguf(path: Path) -> Checkpoint:
    try:
        from .gguf import open_gguf
    except ImportError as error:
        raise CheckpointError(
            f"{path} is a file, and reading GGUF needs the gguf package; "
            "pip install 'enginewright[build]'."
        ) from error
    return open_gguf(path)
