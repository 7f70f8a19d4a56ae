"""docs/cli-reference.md is what the commands say of themselves."""

from pathlib import Path

from tests.support.cli_reference import reference

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli-reference.md").read_text() == reference(), "run scripts/docs"
