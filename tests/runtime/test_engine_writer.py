"""An engine appears whole or not at all."""

from pathlib import Path

import msgspec
import pytest

from enginewright.runtime import engine_writer
from enginewright.runtime.artifact import open_engine, write_engine
from enginewright.runtime.engine_writer import EngineWriter
from enginewright.runtime.errors import InputError

from ..support.engines import make_engine, make_manifest, write_files


def build(output: Path, overwrite: bool = False, name: str = "tiny") -> None:
    with EngineWriter(output, overwrite) as writer:
        fill(writer, name)
        writer.commit()


def fill(writer: EngineWriter, name: str = "tiny") -> None:
    write_files(writer.folder)
    write_engine(writer.folder, msgspec.structs.replace(make_manifest(), name=name))


def test_a_commit_leaves_the_engine_and_nothing_else(tmp_path: Path) -> None:
    build(tmp_path / "a" / "b" / "engine")
    assert open_engine(tmp_path / "a" / "b" / "engine", "full").manifest.name == "tiny"
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["engine"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_interrupted_build_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with EngineWriter(tmp_path / "a" / "b" / "engine") as writer:
            fill(writer)
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_second_interrupt_does_not_stop_the_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_writer.shutil.rmtree
    calls: list[Path] = []

    def impatient(path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(path)

    monkeypatch.setattr(engine_writer.shutil, "rmtree", impatient)

    def interrupted() -> None:
        with EngineWriter(tmp_path / "engine") as writer:
            fill(writer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_leaving_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    with EngineWriter(tmp_path / "engine") as writer:
        fill(writer)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_be_the_output(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    build(tmp_path / "engine")
    open_engine(tmp_path / "engine")


def test_an_existing_engine_is_kept_unless_told(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine")
    with pytest.raises(InputError, match="--overwrite"):
        build(tmp_path / "engine")
    build(tmp_path / "engine", overwrite=True, name="new")
    assert open_engine(tmp_path / "engine").manifest.name == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


def test_replacing_works_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_writer, "_exchange", lambda first, second: False)
    make_engine(tmp_path / "engine")
    build(tmp_path / "engine", overwrite=True, name="new")
    assert open_engine(tmp_path / "engine").manifest.name == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_peoples_files_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("words")
    with pytest.raises(InputError, match="not an engine"):
        build(tmp_path / "thesis", overwrite)
    with pytest.raises(InputError, match="is a file"):
        build(tmp_path / "thesis" / "chapter1", overwrite)
    assert (tmp_path / "thesis" / "chapter1").read_text() == "words"


def test_two_builds_to_one_output_do_not_meet(tmp_path: Path) -> None:
    output = tmp_path / "engine"
    with EngineWriter(output) as first, EngineWriter(output) as second:
        fill(first, "first")
        fill(second, "second")
        first.commit()
        with pytest.raises(InputError):
            second.commit()
    assert open_engine(output, "full").manifest.name == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        build(tmp_path / "file" / "engine")
