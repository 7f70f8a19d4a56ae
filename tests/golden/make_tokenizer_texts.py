"""Makes tokenizer_texts.json: texts, and their token ids in SmolLM2's vocabulary.

Run by hand, in an environment with torch, transformers 5.24.0, gguf and accelerate:

    golden/bin/python tests/golden/make_tokenizer_texts.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

Two witnesses must agree: transformers' tokenizer of the same file, with the Digits step that its
GGUF import leaves out, and byte-pair merging written out here over the published pattern.
"""

# Run in an environment of its own, which the project's tools do not see.
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import json
import sys
from pathlib import Path

import regex
from gguf import GGUFReader
from make_tokenizer import byte_characters
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

GPT2_PATTERN = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
DIGIT_PATTERN = regex.compile(r"\p{N}|\P{N}+")
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "In  2",
    "In   2  and 3",
    "3.14159265358979323846 and 12345678901234567890",
    "1,000,000 or 1000000? ½ ² Ⅷ ٣٤",
    "It's they're WE'VE don't I'm you'll he'd",
    "naïve café déjà vu — Ωmega ПРИВЕТ",
    "😀👩‍👩‍👧‍👦🇩🇪 emoji 👍🏽",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "नमस्ते दुनिया ไทย עברית العربية",
    "def f(x):\n    if x > 0:\n        return x ** 2\n\telse:\n\t\treturn None\n",
    "for (int i = 0; i < n; ++i) {\r\n  a[i] += b[i] * 0x1F;\r\n}\r\n",
    "   leading and trailing   ",
    "\n\n\nthree lines\n\n",
    "tab\there\u00a0nbsp\u3000wide\u200bzero",
    "https://example.com/a?b=c&d=%20#frag",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_end|>  <|unknown|>",
    "e\u0301 is not é",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    '{"key": [1, 2.5e-10, null, true], "s": "\\u00e9"}',
]


class PlainBpe:
    """Byte-pair merging straight from the definition."""

    def __init__(self, tokens: list[str], kinds: list[int], merges: list[str]) -> None:
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
        special.sort(key=len, reverse=True)
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        self.characters = byte_characters()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self.special.split(text)):
            if i % 2:
                ids.append(self.ids[part])
                continue
            for piece in DIGIT_PATTERN.findall(part):
                for word in GPT2_PATTERN.findall(piece):
                    ids += self.merge([self.characters[byte] for byte in word.encode()])
        return ids

    def merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            ranked = [
                (self.ranks.get((parts[i], parts[i + 1]), len(self.ranks)), i)
                for i in range(len(parts) - 1)
            ]
            rank, i = min(ranked)
            if rank == len(self.ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]


def main() -> None:
    path = Path(sys.argv[1])
    fields = GGUFReader(path).fields
    plain = PlainBpe(
        fields["tokenizer.ggml.tokens"].contents(),
        fields["tokenizer.ggml.token_type"].contents(),
        fields["tokenizer.ggml.merges"].contents(),
    )
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    entries = []
    for text in TEXTS:
        ids = plain.encode(text)
        other = backend.encode(text, add_special_tokens=False).ids
        assert ids == other, f"{text!r}: {ids} by definition, {other} by transformers"
        entries.append({"text": text, "ids": ids})
    output = Path(__file__).parent / "tokenizer_texts.json"
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    output.write_text(f"[\n{lines}\n]\n")
    print(f"{len(entries)} texts, {sum(len(entry['ids']) for entry in entries)} ids")


if __name__ == "__main__":
    main()
