"""Compiled code kept between builds: whole entries only, the oldest go, no build breaks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from enginewright.builder.targets.cpu.code_cache import CodeCache


def put(cache: CodeCache, folder: Path, key: str, code: bytes) -> None:
    compiled = folder / "compiled"
    compiled.write_bytes(code)
    cache.put(key, compiled)


def take(cache: CodeCache, folder: Path, key: str) -> bytes | None:
    output = folder / "output"
    output.unlink(missing_ok=True)
    return output.read_bytes() if cache.take(key, output) else None


def test_what_was_put_comes_back_as_a_program(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "deep" / "cache")
    assert take(cache, tmp_path, "a") is None
    put(cache, tmp_path, "a", b"code")
    assert take(cache, tmp_path, "a") == b"code"
    assert os.access(tmp_path / "output", os.X_OK)
    assert take(cache, tmp_path, "b") is None


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_entry_is_none_and_is_removed(damage: str, tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    put(cache, tmp_path, "a", b"code")
    (entry,) = (tmp_path / "cache").iterdir()
    data = entry.read_bytes()
    entry.write_bytes({"cut": data[:-1], "changed": data[:-1] + b"X", "empty": b""}[damage])
    assert take(cache, tmp_path, "a") is None
    assert not (tmp_path / "output").exists()
    assert not entry.exists()


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", limit=300)
    for age, key in enumerate("abcd"):
        put(cache, tmp_path, key, bytes(50))
        for path in (tmp_path / "cache").iterdir():
            if path.name.startswith(key):
                os.utime(path, (age, age))
        if key == "c":
            assert take(cache, tmp_path, "a") is not None  # now it is the newest
    assert [take(cache, tmp_path, key) is not None for key in "abcd"] == [True, False, True, True]


def test_builds_at_the_same_time_see_whole_entries(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", limit=4000)
    wrong: list[bytes] = []

    def build(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        for i in range(100):
            key = str(i % 7)
            put(cache, folder, key, key.encode() * 1000)
            found = take(cache, folder, key)
            if found is not None and found != key.encode() * 1000:
                wrong.append(found)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 4000


def test_a_folder_that_cannot_be_made_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "cache")
    put(cache, tmp_path, "a", b"code")
    assert take(cache, tmp_path, "a") is None


def test_a_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CodeCache(tmp_path / "cache")
    put(cache, tmp_path, "a", b"code")
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    assert take(cache, tmp_path, "a") is None
