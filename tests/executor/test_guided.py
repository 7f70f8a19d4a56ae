import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from enginewright.executor.guided import Compiler, Grammar, Vocabulary, grammar_of
from enginewright.executor.sampling import Guided
from enginewright.runtime.errors import RequestError

VOCAB = 400
EOS = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 300-odd tokens whose end of text is `<end>`."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 40,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(['{"name": "red", "size": 12} yes no maybe'] * 20, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def compiler(folder: Path) -> Compiler:
    return Compiler(lambda: Vocabulary(folder, VOCAB))


def token(tokenizer: Tokenizer, text: str) -> int:
    found = tokenizer.token_to_id(text)
    assert found is not None
    return found


def allowed(grammar: Grammar, answer: list[int], held_back: tuple[int, ...] = ()) -> set[int]:
    row = np.zeros(-(-VOCAB // 32), np.uint32)
    grammar.fill(row, answer, held_back)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def walk(grammar: Grammar, seed: int, most: int = 60) -> list[int]:
    """An answer drawn from the masks alone, ended as soon as it may end."""
    random = np.random.default_rng(seed)
    answer: list[int] = []
    while len(answer) < most:
        choices = allowed(grammar, answer)
        assert choices
        if EOS in choices:
            return answer
        answer.append(int(random.choice(sorted(choices))))
    raise AssertionError("the grammar does not end")


SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer"}, "name": {"enum": ["red", "blue"]}},
    "required": ["size", "name"],
    "additionalProperties": False,
}
KINDS = [
    Guided("regex", "[0-9]{2}-[a-c]+"),
    Guided("choice", '["yes", "no", "may\\"be"]'),
    Guided("grammar", 'start: "a" number\nnumber: /[0-9]{3}/'),
    Guided("grammar", 'root ::= "a" [0-9] [0-9] [0-9]'),
]


@pytest.mark.parametrize("guided", KINDS)
def test_masks_allow_what_the_grammar_allows(
    guided: Guided, compiler: Compiler, tokenizer: Tokenizer
) -> None:
    for seed in range(5):
        text = tokenizer.decode(walk(compiler.compile(guided).result(), seed))
        if guided.kind == "choice":
            assert text in json.loads(guided.value)
        else:
            pattern = guided.value if guided.kind == "regex" else "a[0-9]{3}"
            assert re.fullmatch(pattern, text)


def test_a_document_of_the_schema_passes_and_another_does_not(
    compiler: Compiler, tokenizer: Tokenizer
) -> None:
    good = tokenizer.encode('{"size": 12, "name": "red"}').ids
    for guided in (Guided("json_schema", json.dumps(SCHEMA)), Guided("json_object")):
        grammar = compiler.compile(guided).result()
        for place, wanted in enumerate(good):
            choices = allowed(grammar, good[:place])
            assert wanted in choices
            assert EOS not in choices
        assert EOS in allowed(grammar, good)
    grammar = compiler.compile(Guided("json_schema", json.dumps(SCHEMA))).result()
    (first,) = {tokenizer.encode('{"').ids[0]}
    assert token(tokenizer, "[") not in allowed(grammar, [])
    assert first in allowed(grammar, [])


def test_a_place_follows_its_answer_back_and_forth(
    compiler: Compiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(Guided("regex", "[ab]c[0-9]+")).result()
    a, b, c, one = (token(tokenizer, text) for text in ("a", "b", "c", "1"))
    assert allowed(grammar, [a]) == {c}
    after = allowed(grammar, [a, c, one])
    assert EOS in after
    assert allowed(grammar, [b]) == {c}
    assert len(allowed(grammar, [b, b])) >= VOCAB  # forbidden: the row stays open
    assert allowed(grammar, [a, c, one]) == after
    assert allowed(grammar, []) == {a, b}


def test_tokens_are_held_back_unless_nothing_else_is_left(
    compiler: Compiler, tokenizer: Tokenizer
) -> None:
    one = token(tokenizer, "1")
    grammar = compiler.compile(Guided("regex", "1{1,2}")).result()
    assert EOS in allowed(grammar, [one])
    assert EOS not in allowed(grammar, [one], (EOS,))
    assert allowed(grammar, [one, one], (EOS,)) == {EOS}


@pytest.mark.parametrize(
    "guided",
    [
        Guided("regex", "([0-9"),
        Guided("json_schema", "{"),
        Guided("json_schema", '{"type": "nothing"}'),
        Guided("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'),
        Guided("grammar", "start: missing"),
        Guided("grammar", "\x00\x01"),
        Guided("choice", "[]"),
        Guided("choice", '["a", 1]'),
        Guided("choice", '[""]'),
        Guided("regex", "a" * (1 << 21)),
    ],
)
def test_a_bad_grammar_is_an_error_of_its_request(guided: Guided, compiler: Compiler) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(guided).result()
    assert caught.value.param == "guided"


def test_grammars_that_are_used_again_start_afresh(
    compiler: Compiler, tokenizer: Tokenizer
) -> None:
    guided = Guided("regex", "ab")
    a, b = token(tokenizer, "a"), token(tokenizer, "b")
    first, second = compiler.compile(guided).result(), compiler.compile(guided).result()
    assert b in allowed(first, [a])
    assert a in allowed(second, [])
    assert allowed(first, [a]) == {b}


def test_a_tokenizer_without_an_end_of_text_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    compiler = Compiler(lambda: Vocabulary(tmp_path, VOCAB))
    with pytest.raises(RequestError, match="end-of-text"):
        compiler.compile(Guided("json_object")).result()
    assert grammar_of(Guided("json_object"))
