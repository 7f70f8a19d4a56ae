"""What a rebuild takes from the engine that it replaces, and what it never takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from enginewright.builder.passes.roll_layers import roll_layers
from enginewright.builder.progress import Progress
from enginewright.builder.targets.base import Reuse
from enginewright.builder.targets.cpu import reuse as reuse_module
from enginewright.builder.targets.cpu import target as target_module
from enginewright.builder.targets.cpu.isa import LEVELS, IsaLevel
from enginewright.builder.targets.cpu.program import build_program
from enginewright.builder.targets.cpu.reuse import recipe, take_file
from enginewright.builder.targets.cpu.target import CpuTarget, model_facts
from enginewright.runtime.artifact import read_manifest, write_engine
from tests.support.cpu_engine import Spec
from tests.support.engines import make_engine, make_manifest

GENERIC = LEVELS[-1]
NAME = "rank0.weights"
SPEC = Spec("llama", "int8", isa="generic")


def recipe_of(spec: Spec, level: IsaLevel = GENERIC, source: str = "s") -> str:
    network = spec.network()
    facts = model_facts(network, spec.build)
    return recipe(build_program(network, roll_layers(network), facts, level).packed, level, source)


def test_a_recipe_changes_with_all_that_decides_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = [
        recipe_of(SPEC),
        recipe_of(dataclasses.replace(SPEC, weights="int4")),
        recipe_of(dataclasses.replace(SPEC, group=64)),
        recipe_of(dataclasses.replace(SPEC, changes=(("num_layers", 4),))),
        recipe_of(SPEC, LEVELS[1]),
        recipe_of(SPEC, source="t"),
    ]
    monkeypatch.setattr(reuse_module, "_CODE", ("enginewright.plugins",))
    changed.append(recipe_of(SPEC))
    assert len(set(changed)) == len(changed)
    assert recipe_of(SPEC) == changed[-1]


def test_the_file_of_the_same_recipe_is_taken_without_copying(tmp_path: Path) -> None:
    make_engine(tmp_path / "old", recipes={NAME: "1" * 64})
    output = tmp_path / NAME
    assert not take_file(None, output, "1" * 64)
    assert not take_file(tmp_path / "nothing", output, "1" * 64)
    assert not take_file(tmp_path / "old", output, "2" * 64)
    assert not output.exists()
    assert take_file(tmp_path / "old", output, "1" * 64)
    assert output.samefile(tmp_path / "old" / NAME)


@pytest.mark.parametrize("change", ["bytes", "missing", "manifest"])
def test_a_file_that_was_changed_is_not_taken(change: str, tmp_path: Path) -> None:
    make_engine(tmp_path / "old", recipes={NAME: "1" * 64})
    old = tmp_path / "old" / NAME
    if change == "bytes":
        old.write_bytes(b"X" + old.read_bytes()[1:])
    elif change == "missing":
        old.unlink()
    else:
        (tmp_path / "old" / "engine.json").write_text("{")
    assert not take_file(tmp_path / "old", tmp_path / NAME, "1" * 64)
    assert not (tmp_path / NAME).exists()


def test_a_rebuild_takes_weights_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    folders = [tmp_path / name for name in ("first", "second", "third")]
    engine, made = None, []
    for number, folder in enumerate(folders):
        folder.mkdir()
        if number == 1:  # neither may be made again
            monkeypatch.setattr(target_module, "write_weights", made.append)
        if number == 2:  # another checkpoint: its weights are packed, the code is the same
            monkeypatch.undo()
        reuse = Reuse(lambda: "other" if number == 2 else "same", engine, cache)  # noqa: B023
        result = CpuTarget().compile(SPEC.network(), SPEC.build, folder, Progress(), reuse)
        write_engine(folder, msgspec.structs.replace(make_manifest(), recipes=result.recipes))
        engine = folder
    assert not made
    assert len(list((cache / "code").iterdir())) == 1
    assert folders[1].joinpath(NAME).samefile(folders[0] / NAME)
    assert not folders[2].joinpath(NAME).samefile(folders[0] / NAME)
    files = [read_manifest(folder).files for folder in folders]
    assert files[0] == files[1] == files[2]
