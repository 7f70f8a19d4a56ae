"""The manifest: everything an engine says about itself, as `engine.json` holds it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

import msgspec

from .errors import EngineDamagedError, EngineVersionError, InputError

SCHEMA_VERSION = 3
MANIFEST_FILE = "engine.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

_FILE_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the manifest: immutable, and strict about its keys and types."""


class Producer(_Record, frozen=True, kw_only=True):
    """Which program wrote the engine."""

    name: str
    version: str


class Needs(_Record, frozen=True, kw_only=True):
    """What a machine must have to run the engine."""

    features: tuple[str, ...]  # of the processor, as runtime.machine names them
    os: str
    machine: str


class ProfileFacts(_Record, frozen=True, kw_only=True):
    """One optimization profile: the steps it is for, and the range of each named dimension."""

    kind: Literal["context", "generation"]
    dims: dict[str, tuple[Count, Count, Count]]  # least, optimal, most


class KernelFacts(_Record, frozen=True, kw_only=True):
    """One kernel compiled ahead of time, named as runtime.cuda_contract does."""

    name: str
    variant: str  # which of several of that name, as `kv` or `scale`; empty if there is one
    compute_capability: str
    file: str
    symbol: str
    threads: Positive  # of a block
    shared_bytes: Count


class TensorRTFacts(_Record, frozen=True, kw_only=True):
    """What a TensorRT engine needs and how its steps are laid out (runtime.cuda_contract)."""

    library: Literal["tensorrt", "tensorrt-rtx"]
    version: str  # of the library that compiled the plan
    cuda: str  # major version of the CUDA runtime that the library was made for
    compute_capabilities: tuple[str, ...]  # that the plan runs on
    newer_devices: bool  # whether it runs on later ones too
    version_compatible: bool  # whether later versions of the library read it
    stripped: bool  # whether the weights lie beside the plan
    attention: Literal["gather", "plugin"]
    compute_dtype: str
    num_kv_heads: Positive
    head_dim: Positive
    max_blocks: Positive  # KV blocks of the longest sequence
    workspace_bytes: Count  # estimate of the memory that a step takes beside weights and cache
    profiles: tuple[ProfileFacts, ...]
    kernels: tuple[KernelFacts, ...]


class TargetFacts(_Record, frozen=True, kw_only=True):
    """What the engine was compiled for."""

    name: str
    isa: str
    needs: Needs
    abi: Count
    tensorrt: TensorRTFacts | None = None  # of an engine for GPUs


class Limits(_Record, frozen=True, kw_only=True):
    """The largest step and sequence that the engine can hold."""

    max_batch_size: Positive  # sequences in a step
    max_num_tokens: Positive  # tokens in a step
    max_seq_len: Positive  # prompt and answer of one sequence


class KvFacts(_Record, frozen=True, kw_only=True):
    """How keys and values lie in the KV pool."""

    dtype: str
    block_tokens: Positive
    block_bytes: Positive  # one block, all layers of it
    num_layers: Positive


class TensorFacts(_Record, frozen=True, kw_only=True):
    """Where one packed tensor lies."""

    name: str
    shape: tuple[Count, ...]
    format: str
    file: str
    offset: Count
    bytes: Count


class FileFacts(_Record, frozen=True, kw_only=True):
    """The size and hash of one file of the engine."""

    sha256: Sha256
    bytes: Count


class Source(_Record, frozen=True, kw_only=True):
    """The checkpoint that the engine was built from."""

    name: str
    files: dict[str, Sha256]
    parameters: Count
    bytes: Count


class Quantization(_Record, frozen=True, kw_only=True):
    """The number format of each part, in words: `f32`, `bf16`, `int8` ..."""

    weights: str
    head: str
    activations: str
    kv: str


class SelfCheckFigures(_Record, frozen=True, kw_only=True):
    """How far the engine's logits are from those of the plain f32 reference."""

    sequences: Positive
    positions: Positive  # logit rows compared
    greedy_agreement: float  # share of rows whose likeliest token is the same, 0 to 1
    max_abs_error: float  # of one logit
    mean_abs_error: float
    mean_kl: float  # nats, of the engine's distribution from the reference's
    kl_limit: float
    passed: bool


class Manifest(_Record, frozen=True, kw_only=True):
    """The content of `engine.json`; fields stand in the file in this order."""

    schema_version: int = SCHEMA_VERSION
    producer: Producer
    name: str
    created: str  # ISO 8601, UTC
    model: dict[str, Any]  # builder.model_config.ModelConfig as a dictionary
    build: dict[str, Any]  # builder.config.BuildConfig as a dictionary
    target: TargetFacts
    limits: Limits
    kv: KvFacts
    tensors: tuple[TensorFacts, ...]
    tactics: dict[str, Any]
    files: dict[str, FileFacts]
    recipes: dict[str, Sha256]  # file -> hash of all that decided it: a later build may take it
    source: Source
    quantization: Quantization
    self_check: SelfCheckFigures | None  # None: the build was told to skip it
    times: dict[str, float]  # seconds of each phase
    peak_memory_bytes: Count

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the model knows."""
        return int(self.model["vocab_size"])

    @property
    def embeds(self) -> bool:
        """Whether the engine gives hidden states, to be pooled into vectors, and no logits."""
        return self.build.get("task", "generate") == "embed"

    @property
    def pooling(self) -> Literal["last", "mean"]:
        """Which tokens' hidden states make a text's vector."""
        return "mean" if self.build.get("pooling") == "mean" else "last"

    def check_generates(self) -> None:
        """Raise InputError for an engine that embeds, where one is needed that gives logits."""
        if self.embeds:
            raise InputError(
                f"the engine {self.name} was built with --task embed and gives vectors, no "
                "logits; take one that was built to generate"
            )

    @property
    def output_size(self) -> int:
        """Numbers in a row of the engine's output: the vocabulary, or the hidden size."""
        return int(self.model["hidden_size"]) if self.embeds else self.vocab_size


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises EngineVersionError or EngineDamagedError, and nothing else."""
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise EngineDamagedError(
            f"{MANIFEST_FILE} is not valid JSON ({error}); build the engine again"
        ) from error
    if not isinstance(raw, dict):
        raise EngineDamagedError(
            f"{MANIFEST_FILE} holds a {type(raw).__name__}, expected an object; "
            "build the engine again"
        )
    _check_version(cast("dict[str, Any]", raw).get("schema_version"))
    try:
        manifest = msgspec.convert(raw, Manifest)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise EngineDamagedError(
            f"{MANIFEST_FILE} is damaged: {error}; build the engine again"
        ) from error
    _check_sense(manifest)
    return manifest


def check_file_name(name: str) -> None:
    """Refuse a file name that is not a plain relative path inside the engine folder."""
    if not _FILE_NAME.fullmatch(name) or {".", ".."} & set(name.split("/")):
        raise EngineDamagedError(
            f"{MANIFEST_FILE} names the file {name!r}, expected a plain path inside the engine "
            "folder; do not use this engine"
        )


def _check_version(version: object) -> None:
    if type(version) is not int:
        found = "no schema_version" if version is None else f"schema_version {version!r}"
        raise EngineVersionError(
            f"{MANIFEST_FILE} has {found}, expected the integer {SCHEMA_VERSION}; "
            "build the engine again"
        )
    if version > SCHEMA_VERSION:
        raise EngineVersionError(
            f"the engine has schema version {version} and this enginewright reads up to "
            f"{SCHEMA_VERSION}; update enginewright or build the engine again"
        )
    if version < SCHEMA_VERSION:
        raise EngineVersionError(
            f"the engine has schema version {version} and this enginewright reads "
            f"{SCHEMA_VERSION}; build the engine again"
        )


def _check_sense(manifest: Manifest) -> None:
    """Check what types alone cannot say: names, offsets, and the facts that a session relies on."""
    for name in manifest.files:
        check_file_name(name)
        if name == MANIFEST_FILE:
            raise EngineDamagedError(f"{MANIFEST_FILE} lists itself; build the engine again")
    for field in ("vocab_size", *(["hidden_size"] if manifest.embeds else [])):
        size = manifest.model.get(field)
        if type(size) is not int or size < 1:
            raise EngineDamagedError(
                f"{MANIFEST_FILE} has the {field} {size!r}, expected a positive integer; "
                "build the engine again"
            )
    for tensor in manifest.tensors:
        file = manifest.files.get(tensor.file)
        if file is None:
            raise EngineDamagedError(
                f"tensor {tensor.name!r} lies in {tensor.file!r}, which is not one of the "
                "engine's files; build the engine again"
            )
        if tensor.offset + tensor.bytes > file.bytes:
            raise EngineDamagedError(
                f"tensor {tensor.name!r} ends at byte {tensor.offset + tensor.bytes} of "
                f"{tensor.file}, which has {file.bytes}; build the engine again"
            )
