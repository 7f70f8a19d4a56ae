"""Hub names: told apart from paths, and refused in one sentence when they cannot be fetched."""

import shutil
from pathlib import Path

import pytest

from enginewright.converters import hub, open_checkpoint
from enginewright.runtime.errors import CheckpointError
from tests.support.golden import GOLDEN_FOLDER


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("owner/model.v2", True),
        ("model", False),
        ("./owner/model", False),
        ("/owner/model", False),
        ("owner/model.gguf", False),
        ("a/b/c", False),
    ],
)
def test_the_shape_of_a_name(name: str, expected: bool) -> None:
    assert hub.is_hub_name(name) == expected


def test_a_fetched_model_is_named_after_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(GOLDEN_FOLDER / "qwen2", tmp_path / "snapshot")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(folder))
    with open_checkpoint("owner/model") as checkpoint:
        assert checkpoint.source == "owner/model"


def _errors() -> list[tuple[Exception, str]]:
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
    )

    return [
        (LocalEntryNotFoundError("offline"), "hub cannot be reached; check the network"),
        (HFValidationError("bad"), "neither a local path nor a model"),
        (OSError("disk full"), "download .* failed: disk full"),
    ]


@pytest.mark.parametrize(("error", "message"), _errors(), ids=lambda value: type(value).__name__)
def test_failures(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(name: str, **_: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint("owner/model")
