"""enginewright compiles a language-model checkpoint into an engine and serves that engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .runtime.version import VERSION as __version__

if TYPE_CHECKING:
    from .executor.sampling import Guided, SamplingParams
    from .serve.llm import LLM

__all__ = ["LLM", "Guided", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import LLM, SamplingParams and Guided when they are first asked for."""
    if name == "LLM":
        from .serve.llm import LLM

        return LLM
    if name in ("Guided", "SamplingParams"):
        from .executor import sampling

        return getattr(sampling, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
