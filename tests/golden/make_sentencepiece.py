"""Makes sentencepiece.json: a small SentencePiece vocabulary, and its own ids for some texts.

Run by hand, in an environment with sentencepiece:

    golden/bin/python tests/golden/make_sentencepiece.py
"""

# Run in an environment of its own, which the project's tools do not see.
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import io
import json
from pathlib import Path

import sentencepiece

HERE = Path(__file__).parent
VOCAB_SIZE = 420
CORPUS = """The quick brown fox jumps over the lazy dog. A language model reads the text that stands
before it and writes the word that follows; then it reads its own word, too. In 1984 there were 12
monkeys, and in 2001 there was one. Whoever has an engine wants it to start quickly, to answer
without waiting, and to say what it is. The engine is built once, and it is used many times.
Le renard brun saute par-dessus le chien paresseux. Der schnelle braune Fuchs springt.
def main(argument): return argument + 1  # the comment
"""
TEXTS = [
    "",
    " ",
    "the",
    " the",
    "Hello, world!",
    "In  2   spaces",
    "12345678901234567890",
    "naïve café — Ωmega",
    "😀👩‍👩‍👧 emoji",
    "日本語のテキスト",
    "def f(x):\n    return x ** 2\n",
    "  leading and trailing  ",
    "The engine is built once, and it is used many times.",
]


def main() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = range(processor.vocab_size())
    kinds = [
        2
        if processor.is_unknown(i)
        else 3
        if processor.is_control(i)
        else 6
        if processor.is_byte(i)
        else 1
        for i in pieces
    ]
    vocabulary = {
        "tokens": [processor.id_to_piece(i) for i in pieces],
        "scores": [processor.get_score(i) for i in pieces],
        "kinds": kinds,
        "texts": [{"text": text, "ids": processor.encode(text)} for text in TEXTS],
    }
    (HERE / "sentencepiece.json").write_text(json.dumps(vocabulary) + "\n")
    print(f"{len(kinds)} pieces, {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
