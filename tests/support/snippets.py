"""The snippets of a document: its fenced blocks, and the commands in those of the shell."""

from __future__ import annotations

import re
import shlex
from pathlib import Path


def blocks(path: Path, language: str) -> list[str]:
    """Return the text of every fenced block of a language."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, path.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(path: Path) -> list[list[str]]:
    """Return every command of the shell blocks as its words; comments are left out."""
    found: list[list[str]] = []
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                found.append(words)
    return found
