"""Writing an engine atomically: a folder appears whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType

from .errors import InputError
from .manifest import MANIFEST_FILE

_AT_FDCWD = -100  # Linux, fcntl.h
_RENAME_EXCHANGE = 2  # Linux, renameat2(2)


class EngineWriter:
    """A context in which an engine is made in a temporary sibling folder, then moved into place.

        with EngineWriter(output) as writer:
            ...  # write into writer.folder
            writer.commit()

    Leaving without `commit`, by an error or by Ctrl-C, removes all that was made. Builds to the
    same output at once do not meet: each has its own temporary folder.
    """

    def __init__(self, output: str | Path, overwrite: bool = False) -> None:
        self.output = Path(os.path.abspath(output))
        self._overwrite = overwrite
        self.folder = self.output.with_name(f".{self.output.name}.{secrets.token_hex(6)}.building")
        self._made_parents: list[Path] = []

    def __enter__(self) -> EngineWriter:
        """Make the temporary folder. Raises InputError if the output cannot be written."""
        check_output(self.output, self._overwrite)
        try:
            self._make_parents()
            self.folder.mkdir()
        except OSError as error:
            self._remove_parents()
            raise InputError(f"{self.output.parent} cannot be written: {error}") from error
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not committed, however often Ctrl-C is pressed."""
        self._clean()

    def commit(self) -> None:
        """Move the folder into place. Raises InputError if the output has come to exist since."""
        check_output(self.output, self._overwrite)
        try:
            self.folder.rename(self.output)  # takes the place of an empty folder too
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise InputError(f"{self.output} cannot be written: {error}") from error
            if not self._overwrite:
                raise InputError(
                    f"{self.output} was written by another program during the build; "
                    "choose another output or give --overwrite"
                ) from error
            self._replace()
        self._made_parents.clear()

    def _replace(self) -> None:
        """Swap the new folder with the old one; the old one is then removed by `__exit__`."""
        if _exchange(self.folder, self.output):
            return
        old = self.folder.with_suffix(".old")
        self.output.rename(old)
        try:
            self.folder.rename(self.output)
        except BaseException:
            old.rename(self.output)
            raise
        shutil.rmtree(old)

    def _make_parents(self) -> None:
        missing = [p for p in self.output.parents if not p.exists()]
        for parent in reversed(missing):
            try:
                parent.mkdir()
            except FileExistsError:
                continue
            self._made_parents.append(parent)

    def _remove_parents(self) -> None:
        while self._made_parents:
            try:
                self._made_parents.pop().rmdir()
            except OSError:
                return  # somebody else uses it by now

    def _clean(self) -> None:
        interrupted = False
        while self.folder.exists():
            try:
                shutil.rmtree(self.folder)
            except KeyboardInterrupt:
                interrupted = True
        self._remove_parents()
        if interrupted:
            raise KeyboardInterrupt


def check_output(output: Path, overwrite: bool) -> None:
    """Raise InputError unless an engine may be written at `output`."""
    if not output.exists() and not output.is_symlink():
        return
    if not output.is_dir():
        raise InputError(f"{output} is a file, expected a folder to write; choose another output")
    if not any(output.iterdir()):
        return
    if not (output / MANIFEST_FILE).is_file():
        raise InputError(
            f"{output} holds files that are not an engine, and they are not overwritten; "
            "choose another output"
        )
    if not overwrite:
        raise InputError(
            f"{output} already holds an engine; choose another output or give --overwrite"
        )


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    result = swap(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return result == 0
