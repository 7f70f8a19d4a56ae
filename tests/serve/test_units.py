"""Sizes and times read as people say them."""

import pytest

from enginewright.serve.units import human_bytes, human_count, human_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1500, "1.5 kB"),
        (999_600, "1.0 MB"),
        (135e6, "135 MB"),
        (3e15, "3000 TB"),
    ],
)
def test_bytes(value: float, text: str) -> None:
    assert human_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(7, "7"), (134_515_008, "135 M"), (7.2e9, "7.2 B")])
def test_count(value: float, text: str) -> None:
    assert human_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12 ms"), (3.44, "3.4 s"), (59.97, "1 min 00 s"), (125, "2 min 05 s")],
)
def test_seconds(value: float, text: str) -> None:
    assert human_seconds(value) == text
