"""Fetches a checkpoint from the Hugging Face hub by its name."""

from __future__ import annotations

import re
from pathlib import Path

from ..runtime.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


def is_hub_name(name: str) -> bool:
    """Whether `name` has the shape OWNER/MODEL."""
    return HUB_NAME.fullmatch(name) is not None and not name.endswith(".gguf")


def fetch(name: str) -> Path:
    """Download a hub model, or find it in the hub's cache: its local folder.

    Raises CheckpointError when the hub cannot be reached, or has no such model for this user.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise CheckpointError(
            f"{name} is no local path, and downloading it needs huggingface_hub; "
            "pip install 'enginewright[build]'."
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name} is gated on the Hugging Face hub; ask for access there and set HF_TOKEN."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(
            f"{name} is neither a local path nor a model on the Hugging Face hub; "
            "check the name, or set HF_TOKEN if it is private."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name} is no local path, and the Hugging Face hub cannot be reached; "
            "check the network, or pass a folder or a .gguf file."
        ) from error
    except Exception as error:  # the client's transport errors differ between its versions
        raise CheckpointError(
            f"{name} is no local path, and its download from the Hugging Face hub failed: {error}."
        ) from error
