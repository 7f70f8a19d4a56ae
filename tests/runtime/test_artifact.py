"""What is on disk is what the manifest says, or the right error names the difference."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginewright.runtime.artifact import hash_file, open_engine, read_manifest
from enginewright.runtime.errors import EngineDamagedError, EngineError, EngineVersionError
from enginewright.runtime.manifest import SCHEMA_VERSION, decode_manifest, encode_manifest

from ..support.engines import make_engine, make_manifest

LARGE = 5 << 20


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    make_engine(folder)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "engine.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def test_an_engine_opens_as_it_was_written(tmp_path: Path) -> None:
    manifest = make_engine(tmp_path / "engine")
    for verify in ("fast", "full"):
        assert open_engine(tmp_path / "engine", verify).manifest == manifest
    assert set(manifest.files) == {"rank0.engine", "rank0.weights", "tokenizer/tokenizer.json"}
    facts = manifest.files["rank0.weights"]
    assert facts.sha256 == hash_file(tmp_path / "engine" / "rank0.weights")


def test_the_manifest_begins_with_the_schema_version(engine: Path) -> None:
    text = (engine / "engine.json").read_text()
    assert next(iter(json.loads(text))) == "schema_version"
    assert text.endswith("}\n")


def test_manifest_round_trip() -> None:
    manifest = make_manifest()
    assert decode_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize("name", ["rank0.engine", "rank0.weights", "tokenizer/tokenizer.json"])
def test_a_missing_file_is_named(engine: Path, name: str) -> None:
    (engine / name).unlink()
    with pytest.raises(EngineDamagedError, match=f"{name} is missing"):
        open_engine(engine)


def test_a_truncated_file_is_named(engine: Path) -> None:
    path = engine / "rank0.weights"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EngineDamagedError, match=r"rank0\.weights has 4095 bytes, expected 4096"):
        open_engine(engine)


def test_a_flipped_byte_in_a_small_file_is_found_at_once(engine: Path) -> None:
    flip(engine / "rank0.engine")
    with pytest.raises(EngineDamagedError, match=r"rank0\.engine was changed"):
        open_engine(engine)


def test_a_flipped_byte_in_a_large_file_is_found_by_the_full_check(tmp_path: Path) -> None:
    make_engine(tmp_path / "engine", weights_bytes=LARGE)
    flip(tmp_path / "engine" / "rank0.weights")
    open_engine(tmp_path / "engine")
    with pytest.raises(EngineDamagedError, match=r"rank0\.weights was changed"):
        open_engine(tmp_path / "engine", "full")


def test_an_extra_file_is_named_and_hidden_ones_are_not(engine: Path) -> None:
    (engine / ".DS_Store").write_text("")
    open_engine(engine)
    (engine / "tokenizer" / "more.json").write_text("{}")
    with pytest.raises(EngineDamagedError, match=r"tokenizer/more\.json is not one of"):
        open_engine(engine)


def test_a_folder_in_place_of_a_file_is_refused(engine: Path) -> None:
    (engine / "rank0.engine").unlink()
    (engine / "rank0.engine").mkdir()
    with pytest.raises(EngineDamagedError, match="not a regular file"):
        open_engine(engine)


def test_a_link_that_leads_outside_is_refused(engine: Path, tmp_path: Path) -> None:
    (engine / "rank0.engine").rename(tmp_path / "elsewhere")
    (engine / "rank0.engine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EngineDamagedError, match="outside the engine folder"):
        open_engine(engine)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\\b", "a\n"]
)
def test_a_file_name_that_leaves_the_folder_is_refused(engine: Path, name: str) -> None:
    edit(engine, lambda raw: raw["files"].update({name: raw["files"]["rank0.engine"]}))
    with pytest.raises(EngineDamagedError, match="plain path"):
        open_engine(engine)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, -1, "1", 1.0, True, [], None, 10**30])
def test_another_schema_version_is_named(engine: Path, version: object) -> None:
    edit(engine, lambda raw: raw.update(schema_version=version))
    with pytest.raises(EngineVersionError, match="schema"):
        open_engine(engine)


def test_a_newer_schema_is_named_even_if_all_else_is_unknown(engine: Path) -> None:
    (engine / "engine.json").write_text('{"schema_version": 7, "shape": "of things to come"}')
    with pytest.raises(EngineVersionError, match=r"schema version 7 .* update enginewright"):
        open_engine(engine)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", '"x"', "\x00", '{"schema_version": 3}', "[" * 100_000]
)
def test_broken_json_is_named(engine: Path, text: str) -> None:
    (engine / "engine.json").write_text(text)
    with pytest.raises(EngineDamagedError, match=r"engine\.json"):
        open_engine(engine)


def test_bytes_that_are_not_utf8_are_named(engine: Path) -> None:
    (engine / "engine.json").write_bytes(b'{"schema_version": 3, "name": "\xff"}')
    with pytest.raises(EngineDamagedError):
        open_engine(engine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["limits"].update(max_seq_len="8"), r"max_seq_len|limits"),
        (lambda raw: raw["limits"].update(max_seq_len=0), r"limits\.max_seq_len"),
        (lambda raw: raw["kv"].update(block_bytes=-1), r"kv\.block_bytes"),
        (lambda raw: raw.pop("kv"), "kv"),
        (lambda raw: raw.update(colour="red"), "colour"),
        (lambda raw: raw["files"].pop("rank0.engine"), r"does not list rank0\.engine"),
        (lambda raw: raw["model"].pop("vocab_size"), "vocab_size"),
        (lambda raw: raw["tensors"][0].update(bytes=5000), "ends at byte 5000"),
        (lambda raw: raw["tensors"][0].update(file="nowhere"), "not one of the engine's files"),
        (lambda raw: raw["files"]["rank0.engine"].update(sha256="abc"), "sha256"),
    ],
)
def test_a_wrong_field_is_named(
    engine: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit(engine, change)
    with pytest.raises(EngineDamagedError, match=message):
        open_engine(engine)


def test_what_is_not_an_engine_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no engine at"):
        open_engine(tmp_path / "nowhere")
    with pytest.raises(EngineError, match=r"it has no engine\.json"):
        open_engine(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="is a file"):
        open_engine(tmp_path / "file")
    with pytest.raises(EngineError):
        open_engine("\0")


def test_inspection_reads_the_manifest_of_a_damaged_engine(engine: Path) -> None:
    (engine / "rank0.weights").unlink()
    assert read_manifest(engine).name == "tiny"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutated_manifests(draw: st.DrawFn) -> bytes:
    """A sound manifest with one to three places deleted, replaced or renamed."""
    raw = json.loads(encode_manifest(make_manifest()))
    for _ in range(draw(st.integers(1, 3))):
        parent: Any = raw
        key: Any = draw(st.sampled_from(sorted(raw))) if raw else None
        while key is not None and isinstance(parent[key], dict | list) and parent[key]:
            if draw(st.booleans()):
                break
            parent = parent[key]
            keys = sorted(parent) if isinstance(parent, dict) else range(len(parent))
            key = draw(st.sampled_from(keys))
        if key is None:
            continue
        if draw(st.booleans()):
            del parent[key]
        else:
            parent[key] = draw(JSON)
    return json.dumps(raw).encode("utf-8", "surrogatepass")


@given(data=mutated_manifests())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_manifest_gives_a_manifest_or_an_engine_error(data: bytes) -> None:
    try:
        manifest = decode_manifest(data)
    except EngineError:
        return
    assert decode_manifest(encode_manifest(manifest)) == manifest


@given(position=st.integers(0, 10**9), value=st.binary(max_size=4))
@settings(deadline=None)
def test_mangled_bytes_give_a_manifest_or_an_engine_error(position: int, value: bytes) -> None:
    data = encode_manifest(make_manifest())
    at = position % len(data)
    try:
        decode_manifest(data[:at] + value + data[at + 1 :])
    except EngineError:
        return


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
