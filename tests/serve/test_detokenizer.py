"""Incremental text is the whole text, wherever tokens and pieces are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginewright.serve.detokenizer import Detokenizer, StopStrings
from enginewright.serve.tokenizer import Tokenizer

from .tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def stream(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=True)
    return [*(detokenizer.push(token) for token in answer), detokenizer.flush()]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "naïve café",
        "日本語のテキスト",
        "👩‍👩‍👧‍👦 family 🇫🇷",
        " leading",
        "a\n\n  b",
        "\ufffd",
        "x\ufffd y",
    ]
)


@given(prompt=TEXTS, answer=TEXTS)
def test_pieces_join_to_the_whole_answer(tokenizer: Tokenizer, prompt: str, answer: str) -> None:
    ids = tokenizer.encode(answer)
    assert "".join(stream(tokenizer, tokenizer.encode(prompt), ids)) == answer


@given(text=TEXTS.filter(bool), cut=st.integers(0, 200))
def test_answer_reads_as_after_its_prompt(tokenizer: Tokenizer, text: str, cut: int) -> None:
    ids = tokenizer.encode(text)
    cut %= len(ids)
    before = tokenizer.decode(ids[:cut])
    if not before.endswith("\ufffd"):
        assert "".join(stream(tokenizer, ids[:cut], ids[cut:])) == text[len(before) :]


@given(ids=st.lists(st.integers(0, 319), max_size=30))
def test_any_tokens_give_the_text_of_the_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    pieces = stream(tokenizer, [], ids)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_comes_out_whole(tokenizer: Tokenizer) -> None:
    pieces = stream(tokenizer, tokenizer.encode("a"), tokenizer.encode("😀"))
    assert [piece for piece in pieces if piece] == ["😀"]


def test_a_broken_tail_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("so ")
    pieces = stream(tokenizer, prompt, tokenizer.encode("😀")[:-1])
    assert pieces[-1] == tokenizer.decode(prompt + tokenizer.encode("😀")[:-1])[3:]
    assert set(pieces[-1]) == {"\ufffd"}
    assert set(pieces[:-1]) == {""}


def test_prompt_that_ends_inside_a_character_is_not_repeated(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("secret 😀")[:-1]
    assert "secret" not in "".join(stream(tokenizer, prompt, tokenizer.encode("yes")))


def test_special_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert "".join(stream(tokenizer, [], ids)) == "ab"
    shown = Detokenizer(tokenizer, [], skip_special_tokens=False)
    assert "".join(map(shown.push, ids)) + shown.flush() == "a<|im_end|>b"


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_is_found_at_every_split(include: bool) -> None:
    text, stop = "one two STOP three", "STOP"
    expected = "one two STOP" if include else "one two "
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            shown, found = "", None
            stops = StopStrings([stop, "unseen"], include)
            for piece in (text[:first], text[first:second], text[second:]):
                safe, found = stops.push(piece)
                shown += safe
                if found:
                    break
            assert (shown, found) == (expected, stop)


@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
)
def test_splits_do_not_change_the_match(text: str, stops: list[str], data: st.DataObject) -> None:
    def run(pieces: list[str]) -> tuple[str, str | None]:
        matcher, shown = StopStrings(stops), ""
        for piece in pieces:
            safe, found = matcher.push(piece)
            shown += safe
            assert not any(stop in shown for stop in stops)
            if found:
                return shown, found
        return shown + matcher.flush(), None

    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(pieces) == run(list(text)) == run([text])


def test_text_that_cannot_become_a_stop_is_not_held() -> None:
    stops = StopStrings(["\n\nUser:"])
    assert stops.push("hi\n") == ("hi", None)
    assert stops.push("there") == ("\nthere", None)
    assert stops.push("\n\nUse") == ("", None)
    assert stops.flush() == "\n\nUse"
