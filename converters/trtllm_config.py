"""config.json of a TensorRT-LLM checkpoint -> ModelConfig, and how its ranks share the weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..builder.model_config import ModelConfig, RopeScaling
from ..runtime.errors import CheckpointError, UnsupportedModelError
from . import rope_scaling
from .config_checks import check_config, check_layers, derived_head_dim
from .fields import Fields

# TensorRT-LLM's architectures, and what is a Llama with a model type of its own.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "QWenForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_QWEN_TYPES = {"qwen2": "qwen2", "qwen3": "qwen3"}
_MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "output_multiplier_scale",
)
_DEFAULT_EPS = 1e-5
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Mapping:
    """Which rank holds what: rank = stage * tp_size + position in the stage."""

    tp_size: int
    pp_size: int

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.tp_size * self.pp_size

    def of_stage(self, stage: int) -> range:
        """Return the ranks of a pipeline stage, in tensor-parallel order."""
        return range(stage * self.tp_size, (stage + 1) * self.tp_size)


def model_config(config: Fields, generation: Fields | None) -> ModelConfig:
    """Build the config of a supported architecture; `generation` is a generation_config.json.

    Raises UnsupportedModelError for another one or for quantized weights, and CheckpointError on
    missing or contradictory numbers.
    """
    family = _family(config)
    _refuse_unsupported(config)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_size")
    if head_dim is None:
        head_dim = derived_head_dim(hidden_size, num_heads, config.source)
    num_layers = config.integer("num_hidden_layers")
    check_layers(num_layers, config.source)
    theta, scaling = _rotary(config)
    bias = config.flag("attn_bias")
    return check_config(
        ModelConfig(
            family=family,
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=config.integer("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=config.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            max_position_embeddings=config.integer("max_position_embeddings"),
            norm_eps=config.number("norm_epsilon", _DEFAULT_EPS),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=config.flag("tie_word_embeddings")
            or config.flag("share_embedding_table"),
            qkv_bias=bias or family == "qwen2",
            output_bias=bias and family == "llama",
            mlp_bias=config.flag("mlp_bias"),
            qk_norm=family == "qwen3",
            sliding_window=config.optional_integer("sliding_window")
            if family == "mistral"
            else None,
            eos_token_ids=generation.token_ids("eos_token_id") if generation else (),
            bos_token_ids=generation.token_ids("bos_token_id") if generation else (),
        ),
        config.source,
    )


def rank_mapping(config: Fields, model: ModelConfig) -> Mapping:
    """Return how the weights are shared. Raises CheckpointError for what cannot be joined."""
    fields = config.nested("mapping") or Fields({}, config.source)
    for key in ("cp_size", "moe_ep_size"):
        if fields.integer(key, 1) > 1:
            raise UnsupportedModelError(
                f"{config.source}: mapping.{key} is {fields.integer(key)}, and only tensor- and "
                "pipeline-parallel ranks can be joined; convert the model again without it."
            )
    found = Mapping(fields.integer("tp_size", 1), fields.integer("pp_size", 1))
    world = fields.integer("world_size", found.world_size)
    if found.tp_size < 1 or found.pp_size < 1 or world != found.world_size:
        raise CheckpointError(
            f"{config.source}: the mapping has {world} ranks, {found.tp_size} tensor-parallel and "
            f"{found.pp_size} pipeline-parallel ones; expected their product."
        )
    for what, count, parts in (
        ("attention heads", model.num_heads, found.tp_size),
        ("intermediate columns", model.intermediate_size, found.tp_size),
        ("layers", model.num_layers, found.pp_size),
    ):
        if count % parts:
            raise CheckpointError(
                f"{config.source}: {count} {what} cannot be shared by {parts} ranks evenly; "
                "config and weights do not belong together."
            )
    heads, ranks = model.num_kv_heads, found.tp_size
    if config.flag("remove_duplicated_kv_heads") and ranks > heads:
        raise UnsupportedModelError(
            f"{config.source}: {heads} key-value heads were shared by {ranks} ranks without copies "
            "(remove_duplicated_kv_heads), which cannot be joined; convert the model again."
        )
    if heads % ranks and ranks % heads:
        raise CheckpointError(
            f"{config.source}: {heads} key-value heads cannot be shared by {ranks} ranks; expected "
            "one number to divide the other."
        )
    return found


def _family(config: Fields) -> str:
    architecture = config.text("architecture")
    family = ARCHITECTURES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"{config.source} is a TensorRT-LLM checkpoint of {architecture}, which is not "
            f"supported; supported are {', '.join(ARCHITECTURES)}."
        )
    kind = config.text("qwen_type", family)
    if family in _QWEN_TYPES and kind not in _QWEN_TYPES:
        raise UnsupportedModelError(
            f"{config.source} has qwen_type {kind!r}, which is not supported; supported are "
            f"{', '.join(_QWEN_TYPES)}."
        )
    return _QWEN_TYPES.get(kind, family)


def _refuse_unsupported(config: Fields) -> None:
    activation = config.text("hidden_act")
    if activation not in ("silu", "swiglu"):
        raise UnsupportedModelError(
            f"{config.source} uses the activation {activation!r}; only silu is supported."
        )
    position = config.text("position_embedding_type", "learned_absolute")
    if position not in ("rope_gpt_neox", "yarn"):
        raise UnsupportedModelError(
            f"{config.source} has position_embedding_type {position!r}; only rope_gpt_neox and "
            "yarn are supported."
        )
    quantization = config.nested("quantization")
    for key in ("quant_algo", "kv_cache_quant_algo"):
        value = quantization.text(key, "null") if quantization else "null"
        if value.lower() not in ("null", "none", "no_quant"):
            raise UnsupportedModelError(
                f"{config.source}: quantization.{key} is {value!r}, and quantized TensorRT-LLM "
                "weights are not supported; convert the model without quantization and give "
                "--quant here."
            )
    for key in _MULTIPLIERS:
        if config.number(key, 1.0) != 1.0:
            raise UnsupportedModelError(
                f"{config.source}: {key} is {config.number(key)}; only 1 is supported."
            )
    moe = config.nested("moe")
    if moe is not None and moe.integer("num_experts", 0) > 0:
        raise UnsupportedModelError(
            f"{config.source} is a mixture of {moe.integer('num_experts')} experts, which is not "
            "supported."
        )
    if config.number("rotary_pct", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{config.source} rotates only a part of each head; only whole heads are supported."
        )


def _rotary(config: Fields) -> tuple[float, RopeScaling | None]:
    """Return theta and scaling: Hugging Face's fields under TensorRT-LLM's names."""
    theta = config.number("rotary_base", _DEFAULT_THETA)
    values = {"rope_theta": theta, "rope_scaling": config.values.get("rotary_scaling")}
    return rope_scaling.from_huggingface(Fields(values, config.source), _DEFAULT_THETA)
