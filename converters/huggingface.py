"""Opens a Hugging Face folder: config.json, safetensors in one file or shards, tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError
from .checkpoint import Checkpoint, Tensor
from .families import by_model_type
from .fields import Fields
from .huggingface_config import model_config
from .mapped_file import MappedFile
from .mapping import NameTable, map_tensors
from .safetensors_file import read_safetensors
from .tokenizer_files import copy_tokenizer

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class HuggingFaceCheckpoint(Checkpoint):
    """A folder as `save_pretrained` writes it."""

    def __init__(
        self,
        folder: Path,
        source: str,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        mapped: Sequence[MappedFile],
    ) -> None:
        configs = [folder / "config.json", folder / INDEX_FILE]
        paths = [path for path in configs if path.exists()] + [file.path for file in mapped]
        super().__init__(source, config, tensors, mapped, paths)
        self._folder = folder

    def write_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer's files; generation_config.json is made from the config if absent."""
        copy_tokenizer(
            self._folder,
            folder,
            self.config,
            "save the model's fast tokenizer there (transformers: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...))",
        )


def open_huggingface(folder: Path, source: str) -> HuggingFaceCheckpoint:
    """Open a folder; CheckpointError or UnsupportedModelError when it cannot be converted."""
    config_fields = Fields.from_json(folder / "config.json")
    family = by_model_type(config_fields.text("model_type"), str(folder))
    generation_path = folder / "generation_config.json"
    generation = Fields.from_json(generation_path) if generation_path.exists() else None
    config = model_config(config_fields, generation)
    mapped: list[MappedFile] = []
    try:
        stored: dict[str, Tensor] = {}
        for path in _weight_files(folder):
            mapped.append(MappedFile(path))
            for name, tensor in read_safetensors(mapped[-1]).items():
                if name in stored:
                    raise CheckpointError(f"{folder}: tensor {name} stands in two files.")
                stored[name] = tensor
        table = NameTable(family.rules, lambda rule: rule.huggingface, family.huggingface_extras)
        tensors = map_tensors(stored, table, config, str(folder))
    except BaseException:
        for file in mapped:
            file.close()
        raise
    return HuggingFaceCheckpoint(folder, source, config, tensors, mapped)


def _weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a folder, in a fixed order."""
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    index = folder / INDEX_FILE
    if not index.exists():
        raise CheckpointError(
            f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; expected weights as safetensors."
        )
    weight_map = Fields.from_json(index).nested("weight_map")
    names = set(weight_map.values.values()) if weight_map else set()
    if not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names.")
    present = {path.name for path in folder.iterdir()}
    for name in sorted(names):
        if name not in present:
            raise CheckpointError(
                f"{folder}: shard {name} is missing; the index lists {len(names)} files, "
                "download the checkpoint again."
            )
    return [folder / name for name in sorted(names)]
