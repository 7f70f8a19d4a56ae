"""How text is cut into words before byte-pair merging, by GGUF's `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from ..runtime.errors import UnsupportedModelError

# The patterns that the models' own tokenizer.json files hold.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class BpeStyle:
    """What a byte-level BPE tokenizer does besides merging."""

    pattern: str | None = None  # None: GPT-2's, which ByteLevel brings along
    single_digits: bool = False  # every digit becomes a word before the pattern is applied
    nfc: bool = False  # text is composed (Unicode NFC) first
    whole_words: bool = False  # a word that is a token needs no merges
    adds_bos: bool = False  # when the metadata does not say

    def pre_tokenizer(self) -> PreTokenizer:
        """Build the steps that cut text into byte-level words."""
        if self.pattern is not None:
            split = Split(Regex(self.pattern), behavior="isolated", invert=False)
            return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
        words = ByteLevel(add_prefix_space=False, use_regex=True)
        return Sequence([Digits(individual_digits=True), words]) if self.single_digits else words

    def normalizer(self) -> Normalizer | None:
        """Build what is done to the text before it is cut."""
        return NFC() if self.nfc else None


GPT2_STYLE = BpeStyle()
DIGITS_STYLE = BpeStyle(single_digits=True)
LLAMA3_STYLE = BpeStyle(LLAMA3, whole_words=True, adds_bos=True)
QWEN2_STYLE = BpeStyle(QWEN2, nfc=True)
STYLES = {
    "default": GPT2_STYLE,
    "gpt-2": GPT2_STYLE,
    "smollm": DIGITS_STYLE,
    "starcoder": DIGITS_STYLE,
    "refact": DIGITS_STYLE,
    "llama-bpe": LLAMA3_STYLE,
    "llama3": LLAMA3_STYLE,
    "llama-v3": LLAMA3_STYLE,
    "qwen2": QWEN2_STYLE,
    "deepseek-r1-qwen": QWEN2_STYLE,
    "tekken": BpeStyle(TEKKEN, whole_words=True, adds_bos=True),
}


def bpe_style(name: str, source: str) -> BpeStyle:
    """Find the style of a `tokenizer.ggml.pre`; UnsupportedModelError lists the known ones."""
    style = STYLES.get(name)
    if style is None:
        raise UnsupportedModelError(
            f"{source} asks for the pre-tokenizer {name!r}, which is not supported; "
            f"supported are {', '.join(STYLES)}."
        )
    return style
