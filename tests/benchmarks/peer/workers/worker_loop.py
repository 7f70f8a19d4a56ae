"""Runs in a peer's environment: holds one library, answers calls that come as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any


def main() -> None:
    """Open `sys.argv[1]`'s library with the arguments of `sys.argv[2]`, then answer calls."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log

    def answer(**fields: Any) -> None:
        print("@@" + json.dumps(fields), file=answers, flush=True)

    try:
        library = import_module(sys.argv[1]).open_library(**json.loads(sys.argv[2]))
    except Exception as error:
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {error}")
        return
    answer(result="ready")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(result=getattr(library, request["call"])(**request["arguments"]))
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
