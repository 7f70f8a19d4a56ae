from hypothesis import given
from hypothesis import strategies as st

from enginewright.executor.bans import Bans, has_bans
from enginewright.executor.sampling import TokenParams

TOKENS = st.lists(st.integers(0, 3), max_size=14)


def fits(word: tuple[int, ...], tokens: list[int]) -> bool:
    return len(word) - 1 <= len(tokens) and tokens[len(tokens) - len(word) + 1 :] == list(word[:-1])


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=14),
    ahead=st.lists(st.integers(0, 3), max_size=5),
    more=TOKENS,
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3),
    size=st.integers(0, 4),
)
def test_bans_are_those_of_the_definition(
    tokens: list[int],
    ahead: list[int],
    more: list[int],
    words: list[tuple[int, ...]],
    size: int,
) -> None:
    params = TokenParams(bad_words=tuple(words), no_repeat_ngram_size=size)
    bans = Bans(params)
    assert has_bans(params) == bool(words or size)
    for known in (tokens, tokens + more):
        for drafts in ([], ahead, []):
            whole = known + drafts
            expected = {word[-1] for word in words if fits(word, whole)}
            grams = {tuple(whole[i : i + size]) for i in range(len(whole) - size + 1)}
            for token in range(4):
                last = (*whole[len(whole) - size + 1 :], token)
                if size and len(last) == size and last in grams:
                    expected.add(token)
            assert set(bans.after(known, drafts)) == expected
