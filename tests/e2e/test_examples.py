"""The examples, and what docs/guide.md shows, run against the real engine and the real server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.snippets import blocks, commands

from .conftest import ROOT, Served

GUIDE = ROOT / "docs" / "guide.md"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
SAYS = {  # what an example must print, whatever the model makes of it
    "generate": r"(?m)\A('.*' -> '.*'\n){3}( +-\d+\.\d\d  .* \((length|stop)\)\n){3}\Z",
    "chat_stream": r"(?s)\A> Name three colours\.\n.+\n> Which of them .+\n.+\n\Z",
    "async_many": r"(?s)\A0 plus 0 is \[.*\nstory: .+\n21 requests in \d+ steps\n\Z",
    "json_answer": r"\Ajson_schema +\{'name': .*\}\nregex +19\d\d\nchoice +(yes|no)\n"
    r"grammar +\d=\d+\n\Z",
    "openai_client": r"(?s)\A.+\n\d+ \+ \d+ tokens\n.+\nrefused: .*\(temperature\)\n\Z",
    "stats": r"(?s)\A\d+ prompt tokens, 24 generated.*step   0: .*: 8 tokens in \d\.\d+ s\n\Z",
}
PROGRAMS = blocks(GUIDE, "python")
COMMANDS = [
    words
    for words in commands(GUIDE)
    if words[0] == "curl" or words[:2] in (["enginewright", "bench"], ["enginewright", "eval"])
]


@pytest.fixture(scope="module")
def served(served_on_cpu: Served) -> Served:
    """The guide is about engines for the CPU."""
    return served_on_cpu


def run(command: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or command[0] != sys.executable or "-m" in command
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, smollm2_engine: Path, request: pytest.FixtureRequest) -> None:
    if path.stem == "openai_client":
        served: Served = request.getfixturevalue("served")
        target = served.url
    else:
        target = str(smollm2_engine)
    printed = run([sys.executable, "-W", "error", str(path), target])
    assert re.search(SAYS[path.stem], printed), printed


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_of_the_guide(
    number: int, smollm2_engine: Path, smollm2_embed_engine: Path
) -> None:
    code = PROGRAMS[number].replace("engines/mine", str(smollm2_engine))
    code = code.replace("engines/embed", str(smollm2_embed_engine))
    assert run([sys.executable, "-W", "error", "-c", code]).strip()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:3]))
def test_command_of_the_guide(words: list[str], served: Served) -> None:
    if words[0] == "curl" and shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    text = str(ROOT / "tests" / "e2e" / "texts" / "kl_text.txt")
    places = {
        "engines/mine": str(served.engine),
        "engines/mine-f32": str(served.engine),  # no need to build another one
        "TEXT": text,
    }
    if words[0] == "enginewright":
        words = [sys.executable, "-m", *words]
    words = [places.get(word, word.replace("http://localhost:8000", served.url)) for word in words]
    printed = run(words)
    assert printed.strip()
    assert not re.match(r'\{\s*"error"', printed)  # the shape of every error the server answers
