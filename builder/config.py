"""BuildConfig: the limits, precision and target of a build, validated, to and from JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.errors import InputError
from .config_tensorrt import TensorRTConfig
from .model_config import ModelConfig
from .quantize.formats import QuantFormat

TENSORRT_TARGETS = ("tensorrt", "tensorrt-rtx")
TARGETS = ("cpu", *TENSORRT_TARGETS)
WEIGHT_FORMATS = ("f32", "bf16", "int8", "int4")
HEAD_FORMATS = ("f32", "bf16", "int8")
KV_DTYPES = ("f32", "bf16", "int8")
TACTICS = ("fast", "full")
GROUPS = (64, 128, 192, 256)
TENSORRT_WEIGHT_FORMATS = ("f32", "f16", "bf16", "int8", "fp8", "int4")
TENSORRT_KV_DTYPES = ("f32", "f16", "bf16", "int8", "fp8")
TENSORRT_GROUPS = (32, 64, 128)
TASKS = ("generate", "embed")
POOLINGS = ("last", "mean")
DEFAULT_SEQ_LEN_CAP = 8192
_EIGHT_BITS = {"int4": "int8"}  # what goes with weights of fewer bits by default


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """What a user decides about a build. Construction raises InputError naming a bad field."""

    target: str = "cpu"
    task: str = "generate"  # or embed: the engine gives vectors of texts
    pooling: str | None = None  # embed: which tokens make the vector; None: the last one
    isa: str | None = None  # the target's name of an instruction set; None: this machine's
    weights: str = "int8"
    head_weights: str | None = None  # format of the logits' weight; None: as the others
    group: int | None = None  # elements along k that share a scale: int8, at most; on a GPU of int4
    kv_dtype: str | None = None  # None: as the weights
    max_batch_size: int = 64  # sequences in a step
    max_num_tokens: int = 2048  # tokens in a step
    max_seq_len: int | None = None  # None: the model's own, at most 8192
    cc: str | None = None  # C compiler; None: the one of the package ziglang
    tactics: str | None = None  # "fast" or "full": measured here; None: the cost model chooses
    self_check: bool = True
    tensorrt: TensorRTConfig | None = None  # of a target for GPUs; None: its defaults

    def __post_init__(self) -> None:
        _one_of("target", self.target, TARGETS)
        weights, heads, caches, groups = WEIGHT_FORMATS, HEAD_FORMATS, KV_DTYPES, GROUPS
        if self.for_gpu and self.tactics is not None:
            raise InputError(
                f"tactics of the target {self.target} are measured by TensorRT itself; leave "
                "--tactics out"
            )
        if self.for_gpu:
            weights = heads = TENSORRT_WEIGHT_FORMATS
            caches, groups = TENSORRT_KV_DTYPES, TENSORRT_GROUPS
        elif self.tensorrt is not None:
            raise InputError(
                f"the target {self.target} takes no option of a GPU build; add --target "
                "tensorrt-rtx or --target tensorrt"
            )
        self._check_task()
        _one_of("weights", self.weights, weights)
        _one_of("head_weights", self.head_weights, (None, *heads))
        _one_of("group", self.group, (None, *groups))
        _one_of("kv_dtype", self.kv_dtype, (None, *caches))
        _one_of("tactics", self.tactics, (None, *TACTICS))
        _one_of("self_check", self.self_check, (True, False))
        for name in ("isa", "cc"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InputError(f"{name} is {value!r}; give a name, or leave it out")
        for name in ("max_batch_size", "max_num_tokens"):
            _at_least_one(name, getattr(self, name))
        if self.max_seq_len is not None:
            _at_least_one("max_seq_len", self.max_seq_len)
        if self.max_num_tokens < self.max_batch_size:
            raise InputError(
                f"max_num_tokens is {self.max_num_tokens}, fewer than max_batch_size "
                f"{self.max_batch_size}; every sequence of a step needs at least one token"
            )

    def _check_task(self) -> None:
        _one_of("task", self.task, TASKS)
        _one_of("pooling", self.pooling, (None, *POOLINGS))
        if self.embeds and self.for_gpu:
            raise InputError(
                f"the target {self.target} has no engines that embed; leave --target out"
            )
        if self.pooling is not None and not self.embeds:
            raise InputError(
                f"pooling is {self.pooling!r}, but the task is {self.task}; only an engine that "
                "embeds pools"
            )
        if self.head_weights is not None and self.embeds:
            raise InputError("an engine that embeds has no head; leave head_weights out")

    @property
    def embeds(self) -> bool:
        """Whether the engine gives vectors rather than tokens."""
        return self.task == "embed"

    @property
    def for_gpu(self) -> bool:
        """Whether the target is one of TensorRT's."""
        return self.target in TENSORRT_TARGETS

    @property
    def gpu(self) -> TensorRTConfig:
        """The options of a target for GPUs."""
        return self.tensorrt or TensorRTConfig()

    @property
    def compute_dtype(self) -> str:
        """The type of activations between the ops; a CPU engine's is f32."""
        if not self.for_gpu:
            return "f32"
        return self.gpu.compute_dtype or (
            self.weights if self.weights in ("f32", "bf16") else "f16"
        )

    @property
    def weight_format(self) -> str:
        """The stored format of the weights: on a CPU 4 bits go with a scale and a minimum."""
        return "uint4" if self.weights == "int4" and not self.for_gpu else self.weights

    def group_of(self, form: QuantFormat, columns: int) -> int:
        """Return how many of a row's `columns` share a scale; 0: the whole row, or none do."""
        if self.for_gpu:
            return (self.group or TENSORRT_GROUPS[0]) if form.name == "int4" else 0
        return form.group(columns, self.group or GROUPS[-1])

    def rotation_of(self, form: QuantFormat) -> int:
        """Return how many elements are rotated together before they are rounded; 0: none are."""
        return 0 if self.for_gpu else form.rotation

    @property
    def head_format(self) -> str:
        """The format of the logits' weight."""
        default = self.weights if self.for_gpu else _EIGHT_BITS.get(self.weights, self.weights)
        return self.head_weights or default

    @property
    def kv_format(self) -> str:
        """The type of the KV cache's elements."""
        default = _EIGHT_BITS.get(self.weights, self.weights)
        return self.kv_dtype or (self.compute_dtype if self.for_gpu else default)

    @property
    def seq_len(self) -> int:
        """Tokens of prompt and answer together, in a config that is resolved."""
        assert self.max_seq_len is not None, "resolve the config first"
        return self.max_seq_len

    def resolve(self, model: ModelConfig) -> BuildConfig:
        """Return the config with what depends on the model or on other fields filled in.

        `isa` and `cc` are left to the target. Raises InputError if longer sequences are asked for
        than the model was made for.
        """
        own = model.max_position_embeddings
        if self.max_seq_len is not None and self.max_seq_len > own:
            raise InputError(
                f"max_seq_len is {self.max_seq_len}, but the model's max_position_embeddings is "
                f"{own}; ask for at most {own}"
            )
        return dataclasses.replace(
            self,
            head_weights=None if self.embeds else self.head_format,
            pooling=self.pooling or "last" if self.embeds else None,
            kv_dtype=self.kv_format,
            max_seq_len=self.max_seq_len or min(own, DEFAULT_SEQ_LEN_CAP),
            tensorrt=self.gpu if self.for_gpu else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return every field, in order, as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BuildConfig:
        """Return the config of a JSON object; raises InputError for an unknown or bad field."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise InputError(
                f"a build has no option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        gpu = fields.get("tensorrt")
        if isinstance(gpu, dict):
            fields = {**fields, "tensorrt": TensorRTConfig.from_json(gpu)}
        return cls(**fields)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # 1 == True and 0 == False, so the type is compared too.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        choices = ", ".join("nothing" if choice is None else str(choice) for choice in allowed)
        raise InputError(f"{name} is {value!r}; allowed are {choices}")


def _at_least_one(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of 1 or more")
