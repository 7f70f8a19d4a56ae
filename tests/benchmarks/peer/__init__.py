"""The engines that enginewright is measured beside, one file each."""

from __future__ import annotations

from .base import Peer
from .ctranslate2 import CTranslate2
from .enginewright import Enginewright
from .llama_cpp import LlamaCpp
from .onnxruntime_genai import OnnxRuntimeGenAI
from .openvino import OpenVino
from .transformers import Transformers
from .vllm import Vllm

OURS = Enginewright.name
QUICK = (OURS, LlamaCpp.name, OpenVino.name)


def all_peers() -> list[Peer]:
    """Return every peer, ours first; nothing is installed by that."""
    kinds = (
        Enginewright,
        LlamaCpp,
        OpenVino,
        OnnxRuntimeGenAI,
        CTranslate2,
        Vllm,
        Transformers,
    )
    return [kind() for kind in kinds]
