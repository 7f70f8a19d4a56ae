"""What the README and the guide show is real: programs, commands, options, messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from enginewright.serve.cli import cli
from tests.support.snippets import blocks, commands

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "guide.md"
README = ROOT / "README.md"
API = ROOT / "docs" / "api.md"
NVIDIA = ROOT / "docs" / "nvidia.md"
PROGRAMS = {
    **{
        f"{path.name}-{number}": code
        for path in (README, GUIDE, API)
        for number, code in enumerate(blocks(path, "python"))
    },
    **{path.name: path.read_text() for path in ROOT.glob("docs/examples/*.py")},
}
COMMANDS = [
    words[1:]
    for path in (README, GUIDE, NVIDIA)
    for words in commands(path)
    if words[0].rpartition("/")[2] == "enginewright"
]
FOLDERS = ("builder", "converters", "executor", "runtime", "serve")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile_and_import_what_exists(name: str) -> None:
    code = PROGRAMS[name]
    tree = ast.parse(code)
    compile(tree, "snippet", "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "enginewright":
            module = __import__("enginewright", fromlist=["*"])
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:3]))
def test_commands_and_their_options_exist(words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"there is no command {name}"
        command = found
    known = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word for word in words if re.fullmatch(r"-[a-z]|--[a-z-]+", word)}
    assert given - known == set()


def test_readme_and_guide_show_something() -> None:
    assert len(COMMANDS) >= 10
    assert len(PROGRAMS) >= 15


def texts() -> str:
    """Every text in the code, the parts of f-strings joined by `...`."""
    found: list[str] = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        part.value if isinstance(part, ast.Constant) else "..."
                        for part in node.values
                    )
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_the_messages_of_the_guide_are_the_programs() -> None:
    table = GUIDE.read_text().partition("## When something goes wrong")[2]
    messages = re.findall(r"^\| `([^`]+(?:`[^`|]+)*)` \|", table, flags=re.MULTILINE)
    assert len(messages) >= 10
    known = texts()
    for message in messages:
        for part in message.split("..."):
            assert part.strip() in known, f"no message has {part!r}"


def test_the_guide_names_every_example() -> None:
    named = set(re.findall(r"\(examples/(\w+\.py)\)", GUIDE.read_text()))
    assert named == {path.name for path in (ROOT / "docs" / "examples").iterdir()}
