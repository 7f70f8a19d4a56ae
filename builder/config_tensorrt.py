"""TensorRTConfig: what a build for NVIDIA GPUs is told beyond every build's limits and formats."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from ..runtime.errors import InputError

ATTENTIONS = ("gather", "plugin")
COMPUTE_DTYPES = ("f32", "f16", "bf16")
HARDWARE = ("ampere_plus", "same_compute_capability")
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRTConfig:
    """Options of the targets tensorrt and tensorrt-rtx. Construction raises InputError."""

    compute_capabilities: tuple[str, ...] = ()  # empty: the library's default or this GPU's
    attention: str = "gather"  # form of paged attention
    compute_dtype: str | None = None  # of activations; None: the weights' float type, else f16
    multiple_profiles: bool = False  # optimize for small and for large steps apart
    timing_cache: str | None = None  # file that is read, if it is there, and written
    version_compatible: bool = False  # later versions of the library can read the plan
    hardware_compatible: str | None = None  # devices beside this one; the full TensorRT only
    strip_plan: bool = False  # weights beside the plan, put in when it is loaded

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("attention", self.attention, ATTENTIONS),
            ("compute_dtype", self.compute_dtype, (None, *COMPUTE_DTYPES)),
            ("hardware_compatible", self.hardware_compatible, (None, *HARDWARE)),
        ):
            if value not in allowed:
                names = ", ".join(str(choice) for choice in allowed if choice)
                raise InputError(f"{name} is {value!r}; allowed are {names}")
        for capability in self.compute_capabilities:
            if not _CAPABILITY.fullmatch(capability):
                raise InputError(
                    f"compute capability {capability!r} is not one; expected numbers such as 8.9, "
                    "separated by commas"
                )
        if len(set(self.compute_capabilities)) != len(self.compute_capabilities):
            raise InputError(
                f"compute capabilities {', '.join(self.compute_capabilities)} name one twice; "
                "give each once"
            )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TensorRTConfig:
        """Return the config of a JSON object; raises InputError for a field that is not one."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        try:
            if unknown:
                raise msgspec.ValidationError(f"unknown {', '.join(unknown)}")
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise InputError(
                f"the options of a GPU build are wrong ({error}); there are "
                f"{', '.join(sorted(known))}"
            ) from error
