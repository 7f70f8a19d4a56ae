"""Instruction sets: what each needs, and which one a machine gets."""

from __future__ import annotations

import dataclasses

import pytest

from enginewright.builder.config import BuildConfig
from enginewright.builder.targets.base import get_target
from enginewright.builder.targets.cpu import target as target_module
from enginewright.builder.targets.cpu.isa import LEVELS, IsaLevel, find_level, runnable_levels
from enginewright.builder.targets.cpu.target import CpuTarget
from enginewright.runtime import machine
from enginewright.runtime.errors import InputError
from enginewright.runtime.machine import Machine

HERE = machine.detect()
EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)


def make_machine(arch: str, *features: str) -> Machine:
    return dataclasses.replace(HERE, arch=arch, features=frozenset(features))


@EVERY_LEVEL
def test_a_machine_with_just_the_features_of_a_level_gets_it(level: IsaLevel) -> None:
    made = make_machine(level.arch or "riscv64", *level.features)
    assert find_level(None, made) is level
    assert runnable_levels(made)[0] is level
    assert runnable_levels(made)[-1].name == "generic"


@EVERY_LEVEL
def test_a_feature_less_and_the_level_is_not_taken(level: IsaLevel) -> None:
    for feature in level.features:
        others = [name for name in level.features if name != feature]
        assert level not in runnable_levels(make_machine(level.arch or "", *others))


def test_levels_of_another_architecture_are_not_runnable() -> None:
    features = [name for level in LEVELS for name in level.features]
    assert [level.name for level in runnable_levels(make_machine("aarch64", *features))] == [
        "neon-i8mm",
        "neon",
        "generic",
    ]


def test_a_level_may_be_asked_for_by_name_on_any_machine() -> None:
    assert find_level("neon", make_machine("x86_64")).arch == "aarch64"


def test_an_unknown_level_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no instruction set 'sse9'; expected one of amx, "):
        find_level("sse9", HERE)


def test_this_machine_runs_something() -> None:
    assert runnable_levels(HERE)


@EVERY_LEVEL
def test_levels_make_sense(level: IsaLevel) -> None:
    assert level.panel % (2 * level.lanes) == 0  # half a panel of gates is whole vectors
    assert level.offset in (0, 128)
    assert 32 % (2 * level.lanes) == 0  # positions of a KV block, elements of a group


def test_the_target_describes_what_an_engine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = get_target("cpu")
    assert isinstance(target, CpuTarget)
    facts = target.describe(BuildConfig(isa="neon"))
    assert facts == {
        "isa": "neon",
        "features": ["asimd", "asimddp"],
        "os": "linux",
        "machine": "aarch64",
    }
    made = make_machine("x86_64", "avx2", "fma")
    monkeypatch.setattr(target_module.machine, "detect", lambda: made)
    assert target.describe(BuildConfig())["isa"] == "avx2"
    assert target.describe(BuildConfig(isa="generic"))["machine"] == "x86_64"
    with pytest.raises(InputError, match="no instruction set 'mmx'"):
        target.describe(BuildConfig(isa="mmx"))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(InputError, match="no target 'tpu'; expected 'cpu'"):
        get_target("tpu")
