"""Tensor names of Llama, Mistral and everything shaped like them."""

from __future__ import annotations

from .base import Family, Rule

RULES = (
    Rule("embedding.weight", "model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden")),
    Rule(
        "layers.{i}.input_norm.weight",
        "model.layers.{i}.input_layernorm.weight",
        "blk.{i}.attn_norm.weight",
        ("hidden",),
    ),
    Rule(
        "layers.{i}.attention.q.weight",
        "model.layers.{i}.self_attn.q_proj.weight",
        "blk.{i}.attn_q.weight",
        ("q", "hidden"),
    ),
    Rule(
        "layers.{i}.attention.k.weight",
        "model.layers.{i}.self_attn.k_proj.weight",
        "blk.{i}.attn_k.weight",
        ("kv", "hidden"),
    ),
    Rule(
        "layers.{i}.attention.v.weight",
        "model.layers.{i}.self_attn.v_proj.weight",
        "blk.{i}.attn_v.weight",
        ("kv", "hidden"),
    ),
    Rule(
        "layers.{i}.attention.o.weight",
        "model.layers.{i}.self_attn.o_proj.weight",
        "blk.{i}.attn_output.weight",
        ("hidden", "q"),
    ),
    Rule(
        "layers.{i}.attention.q.bias",
        "model.layers.{i}.self_attn.q_proj.bias",
        "blk.{i}.attn_q.bias",
        ("q",),
        lambda config: config.qkv_bias,
    ),
    Rule(
        "layers.{i}.attention.k.bias",
        "model.layers.{i}.self_attn.k_proj.bias",
        "blk.{i}.attn_k.bias",
        ("kv",),
        lambda config: config.qkv_bias,
    ),
    Rule(
        "layers.{i}.attention.v.bias",
        "model.layers.{i}.self_attn.v_proj.bias",
        "blk.{i}.attn_v.bias",
        ("kv",),
        lambda config: config.qkv_bias,
    ),
    Rule(
        "layers.{i}.attention.o.bias",
        "model.layers.{i}.self_attn.o_proj.bias",
        "blk.{i}.attn_output.bias",
        ("hidden",),
        lambda config: config.output_bias,
    ),
    Rule(
        "layers.{i}.post_attention_norm.weight",
        "model.layers.{i}.post_attention_layernorm.weight",
        "blk.{i}.ffn_norm.weight",
        ("hidden",),
    ),
    Rule(
        "layers.{i}.mlp.gate.weight",
        "model.layers.{i}.mlp.gate_proj.weight",
        "blk.{i}.ffn_gate.weight",
        ("intermediate", "hidden"),
    ),
    Rule(
        "layers.{i}.mlp.up.weight",
        "model.layers.{i}.mlp.up_proj.weight",
        "blk.{i}.ffn_up.weight",
        ("intermediate", "hidden"),
    ),
    Rule(
        "layers.{i}.mlp.down.weight",
        "model.layers.{i}.mlp.down_proj.weight",
        "blk.{i}.ffn_down.weight",
        ("hidden", "intermediate"),
    ),
    Rule(
        "layers.{i}.mlp.gate.bias",
        "model.layers.{i}.mlp.gate_proj.bias",
        "blk.{i}.ffn_gate.bias",
        ("intermediate",),
        lambda config: config.mlp_bias,
    ),
    Rule(
        "layers.{i}.mlp.up.bias",
        "model.layers.{i}.mlp.up_proj.bias",
        "blk.{i}.ffn_up.bias",
        ("intermediate",),
        lambda config: config.mlp_bias,
    ),
    Rule(
        "layers.{i}.mlp.down.bias",
        "model.layers.{i}.mlp.down_proj.bias",
        "blk.{i}.ffn_down.bias",
        ("hidden",),
        lambda config: config.mlp_bias,
    ),
    Rule("final_norm.weight", "model.norm.weight", "output_norm.weight", ("hidden",)),
    Rule(
        "head.weight",
        "lm_head.weight",
        "output.weight",
        ("vocab", "hidden"),
        lambda config: not config.tie_word_embeddings,
    ),
)

# Frequencies are computed from the config; a head next to a tied embedding is a copy of it.
HUGGINGFACE_EXTRAS = (
    "model.layers.{i}.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq",
    "lm_head.weight",
)
# Scaled frequencies have become the config's rope scaling by the time that names are mapped.
GGUF_EXTRAS = ("rope_freqs.weight",)

FAMILY = Family(
    model_types=("llama", "mistral"),
    gguf_architectures=("llama",),
    rules=RULES,
    huggingface_extras=HUGGINGFACE_EXTRAS,
    gguf_extras=GGUF_EXTRAS,
    gguf_rotary_interleaved=True,
)
