"""Tactics by measuring: a valid choice, remembered, and never a reason to fail."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from enginewright.builder.progress import Progress
from enginewright.builder.targets.cpu import tactics as tactics_module
from enginewright.builder.targets.cpu.target import CpuTarget
from enginewright.builder.targets.cpu.timing_cache import TimingCache
from enginewright.runtime.session_cpu import CpuSession
from enginewright.runtime.tactics_cpu import read_tactics
from tests.support.cpu_engine import FAMILY_SPECS, build_engine

SPEC = next(spec for spec in FAMILY_SPECS if spec.build.weights == "int8")


@pytest.mark.parametrize("effort", ["fast", "full"])
def test_measured_tactics_fit_and_are_not_measured_again(
    effort: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tactics_module.Effort(1, 1, 3 if effort == "full" else 1, effort == "full")
    monkeypatch.setitem(tactics_module.EFFORTS, effort, small)
    engine = build_engine(SPEC, tmp_path / "engine")
    result = CpuTarget().compile(SPEC.network(), SPEC.build, _folder(tmp_path), Progress())
    assert result.tune is not None
    products = result.tactics["products"]
    first = result.tune(engine, effort, tmp_path / "cache", Progress())
    found = read_tactics(first, len(products), 15)
    assert [p.name for p in found.products] == [p["name"] for p in products]
    assert all(time > 0 for product in found.products for time in product.microseconds)
    assert effort in found.chosen_by
    monkeypatch.setattr(CpuSession, "launch", _never)
    assert result.tune(engine, effort, tmp_path / "cache", Progress()) == first
    with pytest.raises(AssertionError, match="a step"):
        result.tune(engine, effort, None, Progress())


def _folder(parent: Path) -> Path:
    folder = parent / "again"
    folder.mkdir()
    return folder


def _never(*arguments: object) -> None:
    raise AssertionError("a step was run")


def test_a_cache_that_is_damaged_or_foreign_is_empty_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    for content in ("{", '{"schema": 9, "entries": {"a": 1}}', '{"schema": 1, "entries": 3}', "[]"):
        path.write_text(content)
        cache = TimingCache(path)
        assert cache.get("a") is None
        cache.put("a", [6, 1.5])
        cache.save()
        assert TimingCache(path).get("a") == [6, 1.5]


def test_builds_at_the_same_time_keep_each_others_timings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "timings.json"
    first, second = TimingCache(path), TimingCache(path)
    first.put("a", 1)
    second.put("b", 2)
    savers = [threading.Thread(target=cache.save) for cache in (first, second)]
    for saver in savers:
        saver.start()
        saver.join()
    cache = TimingCache(path)
    assert (cache.get("a"), cache.get("b")) == (1, 2)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TimingCache(tmp_path / "file" / "timings.json")
    cache.put("a", 1)
    cache.save()
    assert cache.get("a") == 1
