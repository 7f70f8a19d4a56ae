"""A tokenizer's files beside a checkpoint, copied into an engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError
from .generation_config import write_generation_config

OPTIONAL_FILES = ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def copy_tokenizer(source: Path, folder: Path, config: ModelConfig, remedy: str) -> None:
    """Copy the files; generation_config.json is made from the config if absent.

    Raises CheckpointError, with `remedy` as what to do, when there is no tokenizer.json.
    """
    tokenizer = source / "tokenizer.json"
    if not tokenizer.exists():
        raise CheckpointError(f"{source} has no tokenizer.json; {remedy}.")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tokenizer, folder / tokenizer.name)
    for name in OPTIONAL_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    if not (folder / "tokenizer_config.json").exists():
        (folder / "tokenizer_config.json").write_text("{}\n", encoding="utf-8")
    generation = source / "generation_config.json"
    if generation.exists():
        shutil.copyfile(generation, folder / generation.name)
    else:
        write_generation_config(config, folder)
