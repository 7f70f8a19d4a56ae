"""Opens a TensorRT-LLM checkpoint: config.json and one safetensors file a rank, ranks joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError
from .checkpoint import Checkpoint, Tensor
from .families import by_model_type
from .families.base import Rule, dimension
from .fields import Fields
from .mapped_file import MappedFile
from .mapping import NameTable, map_tensors
from .safetensors_file import read_safetensors
from .tokenizer_files import copy_tokenizer
from .trtllm_config import Mapping as RankMapping
from .trtllm_config import model_config, rank_mapping

_QKV = "attention.qkv"
_QKV_PARTS = ("attention.q", "attention.k", "attention.v")
# What newer versions of TensorRT-LLM store beside weights, computed from the config.
_COMPUTED = ("rotary_inv_freq", "embed_positions", "embed_positions_for_gpt_attention")
# Canonical names of a layer to those that TensorRT-LLM gives them; q, k and v stand in one tensor.
_LAYER_NAMES = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_layernorm",
    "attention.o": "attention.dense",
    "attention.q_norm": "attention.q_layernorm",
    "attention.k_norm": "attention.k_layernorm",
    # silu(fc) * gate: what others call the gate is fc here, and their up is gate.
    "mlp.gate": "mlp.fc",
    "mlp.up": "mlp.gate",
    "mlp.down": "mlp.proj",
}
_OUTER_NAMES = {
    "embedding.weight": "transformer.vocab_embedding.weight",
    "final_norm.weight": "transformer.ln_f.weight",
    "head.weight": "lm_head.weight",
}
# Split over ranks: by rows (outputs) or by columns (inputs); everything else is whole on each.
_BY_ROWS = ("mlp.gate", "mlp.up")
_BY_COLUMNS = ("attention.o.weight", "mlp.down.weight")


class TrtLlmCheckpoint(Checkpoint):
    """A folder as TensorRT-LLM's convert_checkpoint.py writes it."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        mapped: Sequence[MappedFile],
    ) -> None:
        paths = [folder / "config.json", *(file.path for file in mapped)]
        super().__init__(folder.resolve().name, config, tensors, mapped, paths)
        self._folder = folder

    def write_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer's files, which have to be laid beside the checkpoint first."""
        copy_tokenizer(
            self._folder,
            folder,
            self.config,
            "TensorRT-LLM leaves it with the model that was converted: copy tokenizer.json, "
            "tokenizer_config.json and generation_config.json of that model there",
        )


def is_trtllm(config: Fields) -> bool:
    """Whether a config.json is TensorRT-LLM's: it names one architecture and no model type."""
    return "architecture" in config.values and "model_type" not in config.values


def open_trtllm(folder: Path) -> TrtLlmCheckpoint:
    """Open a folder; CheckpointError or UnsupportedModelError when it cannot be converted."""
    fields = Fields.from_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = Fields.from_json(generation_path) if generation_path.exists() else None
    config = model_config(fields, generation)
    ranks = rank_mapping(fields, config)
    family = by_model_type(config.family, str(folder))
    mapped: list[MappedFile] = []
    try:
        stored: list[dict[str, Tensor]] = []
        for rank in range(ranks.world_size):
            path = folder / f"rank{rank}.safetensors"
            if not path.exists():
                raise CheckpointError(
                    f"{path} is missing; the config says {ranks.world_size} ranks, copy the whole "
                    "checkpoint."
                )
            mapped.append(MappedFile(path))
            stored.append(read_safetensors(mapped[-1]))
        joined = _join(stored, family.rules, config, ranks, str(folder))
        table = NameTable(family.rules, lambda rule: rule.canonical, ())
        tensors = map_tensors(joined, table, config, str(folder))
    except BaseException:
        for file in mapped:
            file.close()
        raise
    return TrtLlmCheckpoint(folder, config, tensors, mapped)


def _join(
    stored: list[dict[str, Tensor]],
    rules: Sequence[Rule],
    config: ModelConfig,
    ranks: RankMapping,
    source: str,
) -> dict[str, Tensor]:
    """Return canonical tensors of all ranks; what no rule names keeps its own name."""
    joined: dict[str, Tensor] = {}
    used: list[set[str]] = [set() for _ in stored]
    for rule in rules:
        if not rule.wanted(config):
            continue
        for layer in range(config.num_layers) if "{i}" in rule.canonical else (None,):
            canonical = rule.canonical.format(i=layer)
            stage, name = _stored_name(rule.canonical, layer, config, ranks)
            parts = [stored[rank].get(name) for rank in ranks.of_stage(stage)]
            found = [part for part in parts if part is not None]
            if len(found) < len(parts):
                if found:
                    raise CheckpointError(
                        f"{source}: tensor {name} stands in {len(found)} of {len(parts)} ranks; "
                        "copy the whole checkpoint."
                    )
                continue
            for rank in ranks.of_stage(stage):
                used[rank].add(name)
            shape = tuple(dimension(config, dim) for dim in rule.shape)
            joined[canonical] = _whole(found, rule.canonical, canonical, shape, config, source)
    for rank, tensors in enumerate(stored):
        for name, tensor in tensors.items():
            copied = name == "lm_head.weight" and config.tie_word_embeddings
            if name not in used[rank] and not copied and not name.endswith(_COMPUTED):
                joined.setdefault(f"{name} of rank {rank}", tensor)
    return joined


def _stored_name(
    canonical: str, layer: int | None, config: ModelConfig, ranks: RankMapping
) -> tuple[int, str]:
    """Return the pipeline stage that holds a tensor, and the name it has there."""
    if layer is None:
        stage = 0 if canonical == "embedding.weight" else ranks.pp_size - 1
        return stage, _OUTER_NAMES[canonical]
    per_stage = config.num_layers // ranks.pp_size
    part, _, kind = canonical.removeprefix("layers.{i}.").rpartition(".")
    if part in _QKV_PARTS:
        part = _QKV
    name = _LAYER_NAMES.get(part, part)
    # Layers are numbered from 0 in every stage.
    return layer // per_stage, f"transformer.layers.{layer % per_stage}.{name}.{kind}"


def _whole(
    parts: list[Tensor],
    rule: str,
    canonical: str,
    shape: tuple[int, ...],
    config: ModelConfig,
    source: str,
) -> Tensor:
    """Return the tensor that the ranks hold slices of; each is checked now and read when loaded."""
    part = rule.removeprefix("layers.{i}.")
    stem = part.rpartition(".")[0]
    rows = slice(None)  # of what a rank holds
    axis, expected = _slices(part, stem, shape, config, len(parts))
    if stem in _QKV_PARTS:
        sizes = _qkv_sizes(config, len(parts))
        start = sum(sizes[: _QKV_PARTS.index(stem)])
        rows = slice(start, start + sizes[_QKV_PARTS.index(stem)])
    elif part == "embedding.weight" and parts[0].shape != expected:
        axis, expected = _split_embedding(parts[0].shape, shape, len(parts))
    for tensor in parts:
        if tensor.shape != expected:
            raise CheckpointError(
                f"{source}: tensor {tensor.name} has shape {list(tensor.shape)}, but the config "
                f"and its {len(parts)} tensor-parallel ranks say {list(expected)}; config and "
                "weights do not belong together."
            )
    copies = max(1, len(parts) // config.num_kv_heads) if stem in _QKV_PARTS[1:] else 1
    chosen = parts[:1] if axis is None else parts[::copies]

    def read() -> np.ndarray:
        arrays = [tensor.load()[rows] for tensor in chosen]
        whole = arrays[0] if axis is None else np.concatenate(arrays, axis=axis)
        return whole[tuple(slice(size) for size in shape)]  # a vocabulary may be padded

    return Tensor(canonical, shape, parts[0].dtype, read)


def _slices(
    part: str, stem: str, shape: tuple[int, ...], config: ModelConfig, ranks: int
) -> tuple[int | None, tuple[int, ...]]:
    """Return the axis that ranks share a tensor along, None if each has all, and a rank's shape."""
    if stem in _QKV_PARTS:
        return 0, (sum(_qkv_sizes(config, ranks)), *shape[1:])
    if stem in _BY_ROWS or part == "head.weight":
        return 0, (-(-shape[0] // ranks), *shape[1:])
    if part in _BY_COLUMNS:
        return 1, (shape[0], shape[1] // ranks)
    return None, shape


def _split_embedding(
    found: tuple[int, ...], shape: tuple[int, ...], ranks: int
) -> tuple[int, tuple[int, ...]]:
    """Return axis and shape of an embedding that was split, by tokens or by columns."""
    if found[-1] == shape[1] // ranks and ranks > 1:
        return 1, (shape[0], shape[1] // ranks)
    return 0, (-(-shape[0] // ranks), shape[1])


def _qkv_sizes(config: ModelConfig, ranks: int) -> tuple[int, int, int]:
    """Return the rows of q, k and v that one rank holds; it has at least one KV head."""
    kv = max(1, config.num_kv_heads // ranks) * config.head_dim
    return config.num_heads // ranks * config.head_dim, kv, kv
