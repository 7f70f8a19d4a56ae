"""BuildConfig: the limits, precision and target of a build, validated, to and from JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.errors import InputError
from .model_config import ModelConfig

WEIGHT_FORMATS = ("f32", "bf16", "int8")
KV_DTYPES = ("f32", "bf16", "int8")
GROUPS = (64, 128, 192, 256)
TARGETS = ("cpu",)
TASKS = ("generate", "embed")
POOLINGS = ("last", "mean")
DEFAULT_SEQ_LEN_CAP = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """What a user decides about a build. Construction raises InputError naming a bad field."""

    target: str = "cpu"
    task: str = "generate"  # or embed: the engine gives vectors of texts
    pooling: str | None = None  # embed: which tokens make the vector; None: the last one
    isa: str | None = None  # the target's name of an instruction set; None: this machine's
    weights: str = "int8"
    head_weights: str | None = None  # format of the logits' weight; None: as the others
    group: int = (
        64  # int8: elements along k, of weights and activations, that share a scale, at most
    )
    kv_dtype: str | None = None  # None: as the weights
    max_batch_size: int = 64  # sequences in a step
    max_num_tokens: int = 2048  # tokens in a step
    max_seq_len: int | None = None  # None: the model's own, at most 8192
    cc: str | None = None  # C compiler; None: the one of the package ziglang
    self_check: bool = True

    def __post_init__(self) -> None:
        _one_of("target", self.target, TARGETS)
        _one_of("task", self.task, TASKS)
        _one_of("pooling", self.pooling, (None, *POOLINGS))
        if self.pooling is not None and not self.embeds:
            raise InputError(
                f"pooling is {self.pooling!r}, but the task is {self.task}; only an engine that "
                "embeds pools"
            )
        if self.head_weights is not None and self.embeds:
            raise InputError("an engine that embeds has no head; leave head_weights out")
        _one_of("weights", self.weights, WEIGHT_FORMATS)
        _one_of("head_weights", self.head_weights, (None, *WEIGHT_FORMATS))
        _one_of("group", self.group, GROUPS)
        _one_of("kv_dtype", self.kv_dtype, (None, *KV_DTYPES))
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

    @property
    def embeds(self) -> bool:
        """Whether the engine gives vectors rather than tokens."""
        return self.task == "embed"

    @property
    def head_format(self) -> str:
        """The format of the logits' weight."""
        return self.head_weights or self.weights

    @property
    def kv_format(self) -> str:
        """The type of the KV cache's elements."""
        return self.kv_dtype or self.weights

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
        return cls(**fields)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # 1 == True and 0 == False, so the type is compared too.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        choices = ", ".join("nothing" if choice is None else str(choice) for choice in allowed)
        raise InputError(f"{name} is {value!r}; allowed are {choices}")


def _at_least_one(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of 1 or more")
