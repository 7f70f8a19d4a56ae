"""Damaged checkpoints: whatever the bytes, the answer is a CheckpointError or a model."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginewright.converters import open_checkpoint
from enginewright.runtime.errors import CheckpointError
from tests.support.gguf import write_gguf
from tests.support.golden import GOLDEN_FOLDER
from tests.support.tiny import make_tiny_config, make_tiny_weights
from tests.support.trtllm import convert

HEADER_BYTES = 4096  # where damage is likeliest to matter
FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
EDITS = st.lists(
    st.tuples(
        st.integers(0, HEADER_BYTES - 1),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from(
                [b"\xff" * 8, b"\x00" * 8, b"\x00" * 7 + b"\x80", b"{", b'"', b"9" * 8]
            ),
        ),
    ),
    max_size=4,
)


def damaged(data: bytes, edits: list[tuple[int, bytes]], length: int | None) -> bytes:
    """Return `data` with some bytes replaced, cut to `length`."""
    buffer = bytearray(data)
    for offset, replacement in edits:
        buffer[offset : offset + len(replacement)] = replacement
    return bytes(buffer if length is None else buffer[:length])


def read_all(path: Path, target: Path) -> None:
    """Open a checkpoint and read all that it holds; only CheckpointError may come of it."""
    with contextlib.suppress(CheckpointError), open_checkpoint(str(path)) as checkpoint:
        for tensor in checkpoint.tensors.values():
            assert tensor.load().shape == tensor.shape
        checkpoint.write_tokenizer(target)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    config = make_tiny_config(
        "llama", num_layers=1, hidden_size=32, intermediate_size=32, head_dim=8
    )
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(path, config, make_tiny_weights(config)).read_bytes()


@FUZZ
@given(edits=EDITS, length=st.one_of(st.none(), st.integers(0, HEADER_BYTES)))
def test_gguf(
    tmp_path: Path, gguf_bytes: bytes, edits: list[tuple[int, bytes]], length: int | None
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged(gguf_bytes, edits, length))
    read_all(path, tmp_path / "tokenizer")


@FUZZ
@given(edits=EDITS, length=st.one_of(st.none(), st.integers(0, HEADER_BYTES)))
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_huggingface(
    tmp_path: Path, name: str, edits: list[tuple[int, bytes]], length: int | None
) -> None:
    original = GOLDEN_FOLDER / "llama-yarn"
    folder = tmp_path / "model"
    if not folder.exists():
        shutil.copytree(original, folder)
    (folder / name).write_bytes(damaged((original / name).read_bytes(), edits, length))
    read_all(folder, tmp_path / "tokenizer")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@FUZZ
@given(value=JSON)
@pytest.mark.parametrize(
    "set_value",
    [
        lambda values, value: values.update(
            dict.fromkeys(("head_dim", "num_hidden_layers"), value)
        ),
        lambda values, value: values.update(rope_parameters=value),
        lambda values, value: values["rope_parameters"].update(factor=value),
        lambda values, value: values.update(eos_token_id=value),
        lambda values, value: values.update(vocab_size=value, hidden_size=value),
    ],
)
def test_config_values(
    tmp_path: Path, set_value: Callable[[dict, object], None], value: object
) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        shutil.copytree(GOLDEN_FOLDER / "llama-yarn", folder)
    values = json.loads((GOLDEN_FOLDER / "llama-yarn" / "config.json").read_text())
    set_value(values, value)
    (folder / "config.json").write_text(json.dumps(values))
    read_all(folder, tmp_path / "tokenizer")


@FUZZ
@given(edits=EDITS, length=st.one_of(st.none(), st.integers(0, HEADER_BYTES)))
@pytest.mark.parametrize("name", ["config.json", "rank1.safetensors"])
def test_trtllm(
    tmp_path: Path, name: str, edits: list[tuple[int, bytes]], length: int | None
) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        convert(GOLDEN_FOLDER / "llama-untied", folder, tp=2)
        shutil.copyfile(folder / name, tmp_path / name)
    (folder / name).write_bytes(damaged((tmp_path / name).read_bytes(), edits, length))
    read_all(folder, tmp_path / "tokenizer")


@FUZZ
@given(value=JSON)
@pytest.mark.parametrize(
    "keys",
    [
        ("architecture",),
        ("mapping",),
        ("quantization",),
        ("moe",),
        ("rotary_scaling",),
        ("head_size", "num_key_value_heads"),
        ("num_hidden_layers", "vocab_size"),
    ],
    ids=lambda keys: keys[0],
)
def test_trtllm_config_values(tmp_path: Path, keys: tuple[str, ...], value: object) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        convert(GOLDEN_FOLDER / "llama-untied", folder)
        shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    values = json.loads((tmp_path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **dict.fromkeys(keys, value)}))
    read_all(folder, tmp_path / "tokenizer")
