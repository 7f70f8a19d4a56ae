"""Which kernels an engine needs, and with which types, constants and tiles each is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...runtime.cuda_contract import SAMPLE

Constant = int | float | str | bool | None

ELEMENT = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "fp8": "i8", "int8": "i8"}
"""Triton's names of element types; fp8 is handled as bits (formats.py)."""

LARGEST = {"f32": 3.0e38, "f16": 65504.0, "bf16": 3.0e38}
"""What a compute type is clipped to before it goes into the cache."""

SPLIT_KEYS = 256
"""Keys of one program of a generation step. Fixed, so that sums do not depend on the batch."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with all that its compilation fixes."""

    name: str
    variant: str
    source: str  # module of this package
    function: str
    signature: Mapping[str, str]  # of every parameter: Triton's type, or constexpr
    constants: Mapping[str, Constant]  # values of the constexpr ones; a dtype as `dtype:fp16`
    warps: int = 4
    stages: int = 2

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that a launch passes, in order."""
        return tuple(name for name, kind in self.signature.items() if kind != "constexpr")

    def to_json(self) -> dict[str, Any]:
        """Return it for another process."""
        names = self.__slots__
        return {name: _plain(getattr(self, name)) for name in names}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention kernels of an engine are compiled for."""

    heads: int
    kv_heads: int
    width: int  # of a head
    compute: str  # f32, f16 or bf16
    cache: str  # f32, f16, bf16, fp8 or int8
    scale: float = 1.0
    window: int = 0
    softcap: float = 0.0
    sinks: bool = field(default=False)

    @property
    def has_scales(self) -> bool:
        """Whether the cache has scales beside it."""
        return self.cache == "int8"

    @property
    def group(self) -> int:
        """Query heads of a KV head, up to a power of two."""
        return power_of_two(self.heads // self.kv_heads)

    @property
    def padded(self) -> int:
        """Elements of a head as a matrix product takes them."""
        return max(16, power_of_two(self.width))

    def tokens(self, generation: bool) -> int:
        """Tokens of a tile: 16 rows for generation, the least that a product takes, else 64."""
        rows = 16 if generation else 64 if self.padded <= 128 and self.compute != "f32" else 32
        return max(1, rows // self.group)


def power_of_two(count: int) -> int:
    """Return the least power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def session_variants(kv_dtype: str, kv_heads: int, width: int, gathers: bool) -> list[Variant]:
    """Return what the session launches itself: `sample`, and `kv_store` in the gather form."""
    made = [sample_variant()]
    if gathers:
        element = {"f32": "i32", "f16": "i16", "bf16": "i16"}.get(kv_dtype, "i8")
        made.append(_store("kv", element, kv_heads, width))
        if kv_dtype == "int8":
            made.append(_store("scale", "i32", kv_heads, 1))
    return made


def _store(variant: str, element: str, kv_heads: int, width: int) -> Variant:
    signature = {"source": f"*{element}", "slots": "*i32", "cache": f"*{element}"}
    signature |= {"source_tokens": "i32", "pool_blocks": "i32"}
    constants = {
        "KV_HEADS": kv_heads,
        "WIDTH": width,
        "PADDED": power_of_two(width),
        "HEADS_PADDED": power_of_two(kv_heads),
    }
    return _variant("kv_store", variant, "kv_write", "kv_store", signature, constants)


_SAMPLE_TYPES = {
    "tokens": "*i32",
    "top_ids": "*i32",
    "top_k": "*i32",
    "positions": "*i32",
    "num_logprobs": "*i32",
    "history_starts": "*i32",
    "history": "*i32",
    "prompt_lengths": "*i32",
    "bias_starts": "*i32",
    "bias_ids": "*i32",
    "seeds": "*u64",
    "masks": "*u32",
}


def sample_variant(block: int = 2048) -> Variant:
    """Return the sampling kernel, which is the same for all engines."""
    signature = {
        argument.name: "i32"
        if argument.kind == "i32"
        else _SAMPLE_TYPES.get(argument.name, "*fp32")
        for argument in SAMPLE.arguments
    }
    return _variant("sample", "", "sample", "sample", signature, {"BLOCK": block}, warps=8)


def attention_variant(shape: AttentionShape, generation: bool) -> Variant:
    """Return `paged_attention`: `context` for any step, `split` for generation steps."""
    compute, cache = f"*{ELEMENT[shape.compute]}", f"*{ELEMENT[shape.cache]}"
    scales = "*fp32" if shape.has_scales else None
    pointers = {
        "q": compute,
        "seq_starts": "*i32",
        "past_tokens": "*i32",
        "block_tables": "*i32",
        "k_cache": cache,
        "v_cache": cache,
        "k_scale": scales,
        "v_scale": scales,
        "sinks": "*fp32" if shape.sinks and not generation else None,
        "seqs": "i32",
        "blocks": "i32",
        "out": "*fp32" if generation else compute,
        "marks": "*fp32" if generation else None,
    }
    constants = {
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "WIDTH": shape.width,
        "PADDED": shape.padded,
        "SCALE": shape.scale,
        "WINDOW": shape.window,
        "SOFTCAP": shape.softcap,
        "CACHE": shape.cache,
        "COMPUTE": f"dtype:{ELEMENT[shape.compute]}",
        "TOKENS": shape.tokens(generation),
        "GROUP": shape.group,
        "SPLIT": SPLIT_KEYS if generation else 0,
        "UP": False,
    }
    kind = "split" if generation else "context"
    name = "paged_attention"
    warps = 4 if generation else 8
    return _variant(name, kind, "attention", name, pointers, constants, warps)


def merge_variant(shape: AttentionShape) -> Variant:
    """Return what joins the splits of a generation step."""
    pointers = {
        "partial": "*fp32",
        "marks": "*fp32",
        "sinks": "*fp32" if shape.sinks else None,
        "splits": "i32",
        "out": f"*{ELEMENT[shape.compute]}",
    }
    constants = {
        "HEADS": shape.heads,
        "WIDTH": shape.width,
        "PADDED": shape.padded,
        "COMPUTE": f"dtype:{ELEMENT[shape.compute]}",
    }
    return _variant("merge_splits", "", "attention", "merge_splits", pointers, constants, warps=1)


def kv_write_variant(shape: AttentionShape, plugin: bool = False, rope: bool = False) -> Variant:
    """Return the writing of pages; `plugin` has the caches a second time, as outputs."""
    compute, cache = f"*{ELEMENT[shape.compute]}", f"*{ELEMENT[shape.cache]}"
    scales = "*fp32" if shape.has_scales else None
    pointers = {"k": compute, "v": compute, "slots": "*i32"}
    if not plugin:
        pointers |= {"positions": "*i32" if rope else None, "table": "*fp32" if rope else None}
    pointers |= {"k_cache": cache, "v_cache": cache, "k_scale": scales, "v_scale": scales}
    if plugin:
        pointers |= {"k_written": cache, "v_written": cache}
        pointers |= {"k_scale_written": scales, "v_scale_written": scales}
    constants = {
        "KV_HEADS": shape.kv_heads,
        "WIDTH": shape.width,
        "HALF": power_of_two(shape.width // 2),
        "LARGEST": LARGEST[shape.compute],
        "CACHE": shape.cache,
    }
    function = "kv_write_op" if plugin else "kv_write"
    kind = "rope" if rope else ""
    return _variant("kv_write", kind, "kv_write", function, pointers, constants, warps=1)


def norm_variant(width: int, compute: str, eps: float, group: int, residual: bool) -> Variant:
    """Return addition, norm and, with a group, rounding to int8."""
    element = f"*{ELEMENT[compute]}"
    pointers = {
        "x": element,
        "residual": element if residual else None,
        "weight": "*fp32",
        "total": element if residual else None,
        "normed": "*i8" if group else element,
        "scales": "*fp32" if group else None,
    }
    constants = {"WIDTH": width, "PADDED": power_of_two(width), "EPS": eps, "GROUP": group}
    name = "residual_norm_quantize"
    return _variant(name, "int8" if group else "", "norm", name, pointers, constants)


def _variant(
    name: str,
    variant: str,
    source: str,
    function: str,
    pointers: Mapping[str, str | None],
    constants: Mapping[str, Constant],
    warps: int = 4,
) -> Variant:
    """Pointers that are absent become constants, so that the kernel leaves their code out."""
    signature = {key: kind or "constexpr" for key, kind in pointers.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    absent: dict[str, Constant] = {key: None for key, kind in pointers.items() if kind is None}
    return Variant(name, variant, source, function, signature, {**absent, **constants}, warps)
