"""Name tables of model families, one family a file, found by the name a checkpoint gives itself."""

from __future__ import annotations

from ...runtime.errors import UnsupportedModelError
from . import llama, qwen2, qwen3
from .base import Family

FAMILIES = (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY)


def by_model_type(model_type: str, source: str) -> Family:
    """Find the family of a Hugging Face model type; UnsupportedModelError lists the known ones."""
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise UnsupportedModelError(
        f"{source} is a model of type {model_type!r}, which is not supported; "
        f"supported are {known}."
    )


def by_gguf_architecture(architecture: str, source: str) -> Family:
    """Find the family of a GGUF architecture; UnsupportedModelError lists the known ones."""
    for family in FAMILIES:
        if architecture in family.gguf_architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise UnsupportedModelError(
        f"{source} has the GGUF architecture {architecture!r}, which is not supported; "
        f"supported are {known}."
    )
