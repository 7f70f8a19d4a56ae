"""config.json of a Hugging Face folder -> ModelConfig."""

from __future__ import annotations

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError, UnsupportedModelError
from . import rope_scaling
from .config_checks import check_config, check_layers, derived_head_dim
from .fields import Fields

# What transformers assumes when a key is absent.
DEFAULT_THETA = 10000.0
DEFAULT_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
DEFAULT_EPS = 1e-6
DEFAULT_QWEN3_HEAD_DIM = 128


def model_config(config: Fields, generation: Fields | None) -> ModelConfig:
    """Build the config of a known family; `generation` is generation_config.json, if there is one.

    End-of-sequence ids of generation_config.json win over those of config.json, as they do in
    transformers. Raises CheckpointError on missing or contradictory numbers.
    """
    family = config.text("model_type")
    _refuse_unsupported(config)
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim")
    if head_dim is None:
        head_dim = (
            DEFAULT_QWEN3_HEAD_DIM
            if family == "qwen3"
            else derived_head_dim(hidden_size, num_heads, config.source)
        )
    num_layers = config.integer("num_hidden_layers")
    check_layers(num_layers, config.source)
    theta, scaling = rope_scaling.from_huggingface(config, DEFAULT_THETA)
    window, window_layers = _window(config, family, num_layers)
    bias = family in ("llama", "qwen3") and config.flag("attention_bias")
    eos = generation.token_ids("eos_token_id") if generation else ()
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
            max_position_embeddings=config.integer(
                "max_position_embeddings", DEFAULT_POSITIONS.get(family)
            ),
            norm_eps=config.number("rms_norm_eps", DEFAULT_EPS),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=config.flag("tie_word_embeddings"),
            qkv_bias=family == "qwen2" or bias,
            output_bias=bias,
            mlp_bias=family == "llama" and config.flag("mlp_bias"),
            qk_norm=family == "qwen3",
            sliding_window=window,
            window_layers=window_layers,
            bos_token_ids=config.token_ids("bos_token_id"),
            eos_token_ids=eos or config.token_ids("eos_token_id"),
            pad_token_id=_pad(config),
        ),
        config.source,
    )


def _refuse_unsupported(config: Fields) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{config.source} uses the activation {activation!r}; only silu is supported."
        )
    quantization = config.nested("quantization_config")
    if quantization is not None:
        method = quantization.text("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{config.source} describes weights quantized by {method!r}, which is not supported; "
            "use the unquantized checkpoint."
        )
    if config.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{config.source} rotates only a part of each head; only whole heads are supported."
        )


def _pad(config: Fields) -> int | None:
    """Get the padding token; older Llama configs write -1 for none."""
    token = config.optional_integer("pad_token_id")
    return None if token is None or token < 0 else token


def _window(
    config: Fields, family: str, num_layers: int
) -> tuple[int | None, tuple[int, ...] | None]:
    """(sliding window, the layers it holds for); (None, None) when every token sees all before."""
    window = config.optional_integer("sliding_window")
    if family == "llama" or window is None:
        return None, None
    if family == "mistral":
        return window, None
    if not config.flag("use_sliding_window"):
        return None, None
    kinds = config.items("layer_types", str)
    if kinds:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise UnsupportedModelError(
                f"{config.source}: layer_types names {sorted(unknown)[0]!r}; supported are "
                "full_attention and sliding_attention."
            )
        if len(kinds) != num_layers:
            raise CheckpointError(
                f"{config.source}: layer_types lists {len(kinds)} layers, but num_hidden_layers "
                f"is {num_layers}."
            )
        layers = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    else:
        layers = tuple(range(max(0, config.integer("max_window_layers", 28)), num_layers))
    if not layers:
        return None, None
    return window, None if len(layers) == num_layers else layers
