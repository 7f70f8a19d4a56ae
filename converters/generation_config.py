"""Writes generation_config.json for checkpoints that come without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..builder.model_config import ModelConfig


def write_generation_config(config: ModelConfig, folder: Path) -> None:
    """Write the special token ids of `config`, as Hugging Face writes them."""
    values: dict[str, Any] = {
        "bos_token_id": config.bos_token_ids[0] if config.bos_token_ids else None,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": config.pad_token_id,
    }
    kept = {key: value for key, value in values.items() if value is not None and value != []}
    text = json.dumps(kept, indent=2)
    (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")
