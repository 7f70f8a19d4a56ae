"""The documents name what exists, all of it and nothing else."""

import re
import tomllib
from pathlib import Path

import pytest

import enginewright
from enginewright.runtime import errors

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("builder", "converters", "executor", "plugins", "runtime", "serve")
STRUCTURE = ROOT / "docs" / "structure.md"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "engines" / "README.md"]


def modules() -> set[str]:
    found: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".h", ".c") and path.name != "__init__.py":
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_structure_names_every_module_and_only_those() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \|", STRUCTURE.read_text(), flags=re.MULTILINE))
    assert sorted(modules() - named) == [], "docs/structure.md misses these"
    assert sorted(named - modules()) == [], "docs/structure.md names these, which do not exist"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text()):
        assert (path.parent / link).exists(), f"{link} does not exist"


def test_errors_are_documented_with_their_numbers() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = {
        name: (int(exit_code), int(status), code)
        for name, exit_code, status, code in re.findall(
            r"^\| `(\w+)` \| (\d+) \| (\d+) \| `(\w+)` \|", text, flags=re.MULTILINE
        )
    }
    found = {
        error.__name__: (error.exit_code, error.http_status, error.code)
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.EnginewrightError)
    }
    assert rows == found


def test_version_and_changelog_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == enginewright.__version__
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert heading is not None
    assert heading[1] in ("Unreleased", enginewright.__version__)
