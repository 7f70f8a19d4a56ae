"""Key files and the limits of keys."""

from pathlib import Path

import pytest

from enginewright.runtime.errors import InputError
from enginewright.serve.operation.key_limits import KeyLimiter
from enginewright.serve.operation.keys import KeyRule, make_ring, read_key_file


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        "# ours\nsecret-1\n\nsecret-2 name=batch max_in_flight=4 requests_per_minute=60\n"
    )
    assert read_key_file(path) == {
        "secret-1": KeyRule("line-2"),
        "secret-2": KeyRule("batch", 4, 60),
    }
    ring = make_ring(["given"], path)
    assert ring.find("given") == KeyRule("key-1")
    assert ring.find("secret-2") == KeyRule("batch", 4, 60)
    assert ring.find("secret-3") is None
    assert ring.find("") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("a max_in_flight=0", "whole numbers from 1"),
        ("a requests_per_minute=many", "line 1"),
        ("a b", "name=NAME"),
        ("a\na", "line 2"),
    ],
)
def test_wrong_key_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_key_file(path)


def test_a_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        make_ring([], tmp_path / "none")


def test_no_ring_lets_everybody_in() -> None:
    assert not make_ring([], None)


def test_requests_in_flight() -> None:
    limiter, rule = KeyLimiter(), KeyRule("a", max_in_flight=2)
    assert [limiter.enter(rule, 0.0) for _ in range(3)] == [0, 0, 1]
    limiter.leave(rule)
    assert limiter.enter(rule, 0.0) == 0
    assert limiter.enter(KeyRule("b", max_in_flight=1), 0.0) == 0


def test_requests_a_minute() -> None:
    limiter, rule = KeyLimiter(), KeyRule("a", requests_per_minute=2)
    assert limiter.enter(rule, 100.0) == 0
    assert limiter.enter(rule, 130.0) == 0
    assert limiter.enter(rule, 140.0) == 20
    assert limiter.enter(rule, 160.5) == 0
    assert limiter.enter(rule, 161.0) == 29


def test_a_refused_request_counts_for_nothing() -> None:
    limiter, rule = KeyLimiter(), KeyRule("a", max_in_flight=1, requests_per_minute=2)
    assert limiter.enter(rule, 0.0) == 0
    assert limiter.enter(rule, 1.0) == 1
    limiter.leave(rule)
    assert limiter.enter(rule, 2.0) == 0
