"""Small byte-level tokenizers, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from enginewright.serve.tokenizer import Tokenizer

TEMPLATE = """\
{%- for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant') %}
{{ raise_exception('unknown role ' + message.role) }}
{%- endif %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_TEXTS = ["the quick brown fox jumps over the lazy dog", "hello world, how are you today?"]


def write_tokenizer(folder: Path, template: str | None = TEMPLATE, **generation: object) -> None:
    """Write a tokenizer folder: 3 special tokens, all bytes, a few merges."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[
            AddedToken(text, special=True) for text in ("<|end|>", "<|im_start|>", "<|im_end|>")
        ],
        show_progress=False,
    )
    raw.train_from_iterator(_TEXTS * 4, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    raw.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": raw.token_to_id("<|end|>"), **generation})
    )


def make_tokenizer(folder: Path, **options: object) -> Tokenizer:
    """Write a tokenizer folder and open it."""
    write_tokenizer(folder, **options)  # type: ignore[arg-type]
    return Tokenizer(folder)
