"""Makes the tiny models beside it, and the logits that transformers computes with them.

Run by hand, in an environment of its own, when a family is added:

    python3 -m venv golden && golden/bin/pip install torch==2.13.0 transformers==5.24.0
    golden/bin/python tests/golden/make_golden.py [NAME ...]

Every model is random (seeded), float32 in the computation, and stored in a dtype that holds its
weights exactly. expected.npz holds `ids` int32 [40] and `logits` float32 [40, vocab_size].
"""

# Run in an environment of its own, which the project's tools do not see.
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import argparse
import copy
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_tokenizer import write_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
NUM_TOKENS = 40
BOS, EOS = 0, 1
SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Golden:
    """One model: its type, what differs from SMALL, and how it is stored."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    shard_size: str = "5GB"


def rope(kind: str, **fields: float) -> dict[str, Any]:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **fields}
    return {"rope_parameters": parameters, "max_position_embeddings": 128}


WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
MODELS = {
    "llama-tied": Golden("llama", {"intermediate_size": 128}, torch.float32, shard_size="150KB"),
    "llama-untied": Golden(
        "llama",
        {
            "hidden_size": 96,
            "intermediate_size": 160,
            "vocab_size": 253,
            "head_dim": 24,
            "tie_word_embeddings": False,
        },
        torch.float16,
    ),
    "llama-biases": Golden(
        "llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    ),
    "llama-linear": Golden("llama", rope("linear", factor=4.0)),
    "llama-llama3": Golden(
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": Golden("llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": Golden(
        "mistral",
        {
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2": Golden("qwen2", {"intermediate_size": 128, "num_hidden_layers": 3, **WINDOW}),
    "qwen3": Golden("qwen3", {"intermediate_size": 128, "num_hidden_layers": 3, "head_dim": 32}),
}


def randomize(model: torch.nn.Module, generator: torch.Generator, dtype: torch.dtype) -> None:
    """Weights, exact in `dtype`; their scale keeps activations and logits near one.

    Wider ones would only magnify the rounding that any two float32 computations differ by.
    """
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            values = 1.0 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embed_tokens" in name:
            values = 0.125 * values
        else:
            values = values / parameter.shape[1] ** 0.5
        parameter.data.copy_(values.to(dtype))


def make(name: str, golden: Golden) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    config = AutoConfig.for_model(
        golden.model_type, **{**SMALL, "bos_token_id": BOS, "eos_token_id": EOS, **golden.changes}
    )
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    seed = int.from_bytes(name.encode(), "little") % 2**31
    randomize(model, torch.Generator().manual_seed(seed), golden.dtype)
    # A copy is stored: the model itself must keep its rotary frequencies in float32.
    stored = copy.deepcopy(model).to(golden.dtype)
    stored.save_pretrained(folder, max_shard_size=golden.shard_size)
    ids = np.random.default_rng(seed).integers(2, config.vocab_size, NUM_TOKENS, dtype=np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    np.savez_compressed(folder / "expected.npz", ids=ids, logits=logits)
    write_tokenizer(folder, config.vocab_size)
    print(f"{name:<14} |logits| <= {np.abs(logits).max():.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the tiny models and their logits.")
    parser.add_argument("names", nargs="*", help=f"among {', '.join(MODELS)}; default: all")
    for name in parser.parse_args().names or MODELS:
        make(name, MODELS[name])


if __name__ == "__main__":
    main()
