"""Rebuilds tokenizer.json and its companions from GGUF metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from ..builder.model_config import ModelConfig
from ..runtime.errors import CheckpointError, UnsupportedModelError
from .fields import Fields
from .generation_config import write_generation_config
from .pre_tokenizers import bpe_style
from .sentencepiece_merges import merges_from_scores

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "\u2581"  # SentencePiece's visible space


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token list of a GGUF file."""

    tokens: list[str]
    kinds: list[int]
    ids: dict[str, int]

    @classmethod
    def of(cls, metadata: Fields, vocab_size: int) -> Vocabulary:
        """Read and check the list; CheckpointError when it does not fit the embedding."""
        tokens = metadata.items("tokenizer.ggml.tokens", str)
        kinds = metadata.items("tokenizer.ggml.token_type", int) or [NORMAL] * len(tokens)
        if not tokens or len(tokens) > vocab_size or len(kinds) != len(tokens):
            raise CheckpointError(
                f"{metadata.source}: the tokenizer lists {len(tokens)} tokens and {len(kinds)} "
                f"token types for an embedding of {vocab_size} rows."
            )
        ids: dict[str, int] = {}
        for i, token in enumerate(tokens):
            ids.setdefault(token, i)
        return cls(tokens, kinds, ids)

    def of_kind(self, *kinds: int) -> list[str]:
        """List the tokens of some kinds, in order of their ids."""
        return [t for t, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]

    def named(self, metadata: Fields, role: str) -> str | None:
        """Look up the token that the metadata gives a role (bos, eos, padding, unknown)."""
        i = metadata.optional_integer(f"tokenizer.ggml.{role}_token_id")
        if i is None:
            return None
        if not 0 <= i < len(self.tokens):
            raise CheckpointError(
                f"{metadata.source}: the {role} token is {i}, but the tokenizer has only "
                f"{len(self.tokens)} tokens."
            )
        return self.tokens[i]


def write_gguf_tokenizer(metadata: Fields, config: ModelConfig, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder`.

    Raises UnsupportedModelError on a tokenizer of another kind, CheckpointError on a damaged one.
    """
    tokenizer, settings = build_tokenizer(metadata, config.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    write_generation_config(config, folder)


def build_tokenizer(metadata: Fields, vocab_size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Build (tokenizer, contents of tokenizer_config.json) from GGUF metadata."""
    vocabulary = Vocabulary.of(metadata, vocab_size)
    try:
        tokenizer, adds_bos = _model(metadata, vocabulary)
        special = vocabulary.of_kind(CONTROL, UNKNOWN)
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in special]
        )
        plain = vocabulary.of_kind(USER_DEFINED)
        tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
        settings = _settings(metadata, vocabulary, adds_bos)
        _frame(tokenizer, vocabulary, settings)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exceptions, on unknown merges for one
        raise CheckpointError(
            f"{metadata.source}: the tokenizer cannot be rebuilt: {error}."
        ) from error
    return tokenizer, settings


def _model(metadata: Fields, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """(tokenizer without added tokens, whether it begins a text with bos by default)."""
    model = metadata.text("tokenizer.ggml.model")
    match model:
        case "gpt2":
            return _byte_level(metadata, vocabulary)
        case "llama":
            return _sentencepiece(metadata, vocabulary), True
        case _:
            raise UnsupportedModelError(
                f"{metadata.source} has a tokenizer of model {model!r}, which is not supported; "
                "supported are gpt2 and llama."
            )


def _settings(metadata: Fields, vocabulary: Vocabulary, adds_bos: bool) -> dict[str, Any]:
    """What tokenizer_config.json says."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": metadata.flag("tokenizer.ggml.add_bos_token", adds_bos),
        "add_eos_token": metadata.flag("tokenizer.ggml.add_eos_token"),
    }
    for key, role in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token = vocabulary.named(metadata, role)
        if token is not None:
            settings[f"{key}_token"] = token
    template = metadata.text("tokenizer.chat_template", "")
    if template:
        settings["chat_template"] = template
    return settings


def _byte_level(metadata: Fields, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """GPT-2's kind: (tokenizer, whether it begins a text with bos by default)."""
    style = bpe_style(metadata.text("tokenizer.ggml.pre", "default"), metadata.source)
    merges: list[tuple[str, str]] = []
    for merge in metadata.items("tokenizer.ggml.merges", str):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(BPE(vocabulary.ids, merges, ignore_merges=style.whole_words))
    normalizer = style.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = style.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, style.adds_bos


def _sentencepiece(metadata: Fields, vocabulary: Vocabulary) -> Tokenizer:
    """Llama 2's kind: BPE over characters, with bytes for what the vocabulary lacks."""
    scores = metadata.items("tokenizer.ggml.scores", (int, float))
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointError(
            f"{metadata.source}: the tokenizer lists {len(vocabulary.tokens)} tokens, "
            f"but {len(scores)} scores."
        )
    mergeable = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.kinds, strict=True)
        if kind == NORMAL
    }
    unknown = vocabulary.named(metadata, "unknown") or next(iter(vocabulary.of_kind(UNKNOWN)), None)
    tokenizer = Tokenizer(
        BPE(
            vocabulary.ids,
            merges_from_scores(mergeable),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if prefix else [*steps]
    )
    return tokenizer


def _frame(tokenizer: Tokenizer, vocabulary: Vocabulary, settings: dict[str, Any]) -> None:
    """Let `encode(add_special_tokens=True)` put bos before and eos behind a text, where asked."""
    before = (
        [settings["bos_token"]] if settings["add_bos_token"] and "bos_token" in settings else []
    )
    after = [settings["eos_token"]] if settings["add_eos_token"] and "eos_token" in settings else []
    if not before and not after:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        special_tokens=[(token, vocabulary.ids[token]) for token in {*before, *after}],
    )
