"""The folders, the import name, the package list and the layers agree."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAME = "enginewright"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = sorted(value for key, value in CONFIG["package-dir"].items() if key != NAME)
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "plugins": {"runtime"},
    "builder": {"plugins", "runtime"},
    "converters": {"builder", "runtime"},
    "executor": {"plugins", "runtime"},
    "serve": {"executor", "converters", "builder", "runtime"},
}
TOP = {"__version__"}  # what `from .. import` may take from the package itself
FAMILIES = re.compile(r"\b(llama|mistral|qwen\w*|gemma|gpt2)\b", re.IGNORECASE)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_every_package_on_disk_is_listed() -> None:
    found = {NAME}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join((NAME, *init.parent.relative_to(ROOT).parts)))
    assert set(CONFIG["packages"]) == found


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_imports_are_relative_and_point_down(path: Path) -> None:
    folder, *inner = path.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            tops = {alias.name.split(".")[0] for alias in node.names}
            assert not tops & {NAME, *FOLDERS}, f"line {node.lineno}: import relatively"
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            top = (node.module or "").split(".")[0]
            assert top not in {NAME, *FOLDERS}, f"line {node.lineno}: import relatively"
        elif isinstance(node, ast.ImportFrom) and node.level > len(inner):
            target = (node.module or node.names[0].name).split(".")[0]
            assert target == folder or target in MAY_IMPORT[folder] | TOP, (
                f"line {node.lineno}: {folder} may not import {target}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_every_module_says_what_it_owns(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert path.name == "__init__.py" or docstring, "a module begins with one line on its job"


TARGET_FILES = [
    path
    for folder in ("builder/passes", "builder/targets", "plugins")
    for pattern in ("*.py", "*.h")
    for path in sorted((ROOT / folder).rglob(pattern))
]


@pytest.mark.parametrize("path", TARGET_FILES, ids=names(TARGET_FILES))
def test_targets_and_passes_know_no_model_family(path: Path) -> None:
    assert not FAMILIES.search(path.read_text())


def test_serving_does_not_load_the_builder() -> None:
    """An image that only serves carries neither builder nor converters."""
    program = (
        f"import sys, {NAME}.serve.cli, {NAME}.executor.main\n"
        f"print(*sorted(m for m in sys.modules if m.startswith(('{NAME}.builder', "
        f"'{NAME}.converters'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
