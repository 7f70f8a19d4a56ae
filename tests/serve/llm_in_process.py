"""A program that uses an LLM over the toy executor, run as a script: WAY ENGINE.

It prints what it saw as one JSON object; `tests/serve/test_llm_process.py` reads it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from enginewright import LLM, SamplingParams
from enginewright.executor.client import ExecutorClient

TOY = (sys.executable, str(Path(__file__).with_name("toy_executor.py")))
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def open_llm(engine: Path) -> tuple[LLM, int]:
    client = ExecutorClient.start(engine, command=TOY)
    return LLM(engine, client=client), client.pid


def name_of_error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def use_inherited(llm: LLM, running: Any, done: Any, pipe: Connection) -> None:
    """Everything a child may try; the answers go back through the pipe."""

    async def wait() -> None:
        await running

    pipe.send(
        {
            "generate": name_of_error(lambda: llm.generate([5], SHORT)),
            "chat": name_of_error(lambda: llm.chat([{"role": "user", "content": "Hi"}])),
            "get_stats": name_of_error(llm.get_stats),
            "result": name_of_error(running.result),
            "iterate": name_of_error(lambda: next(iter(running))),
            "await": name_of_error(lambda: asyncio.run(wait())),
            "abort": name_of_error(running.abort),
            "done": name_of_error(done.result),
            "shutdown": name_of_error(llm.shutdown),
        }
    )


def fork(engine: Path) -> dict[str, Any]:
    """A child tries to use the LLM and shuts it down; the parent goes on."""
    llm, _ = open_llm(engine)
    done = llm.generate_async([5], SHORT).result()
    running = llm.generate_async([5], LONG, streaming=True)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=use_inherited, args=(llm, running, done, there)
    )
    child.start()
    child.join()
    found = here.recv()
    length = running.result().outputs[0].length
    again = llm.generate_async([5], SHORT).result().outputs[0].token_ids
    llm.shutdown()
    return {"child": found, "exit code": child.exitcode, "length": length, "again": again}


def fork_and_exit(engine: Path) -> dict[str, Any]:
    """Children that end in every way, and one that opens an LLM of its own."""
    llm, _ = open_llm(engine)
    codes: list[int] = []
    for way in ("exit", "with", "collect", "open"):
        pid = os.fork()
        if pid == 0:
            if way == "with":
                llm.__exit__(None, None, None)
            if way == "collect":
                del llm
                gc.collect()
            if way == "open":
                own, _ = open_llm(engine)
                assert own.generate_async([5], SHORT).result().outputs[0].length == 3
            sys.exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    again = llm.generate_async([5], SHORT).result().outputs[0].token_ids
    llm.shutdown()
    return {"exit codes": codes, "again": again}


def leave_a_child(engine: Path) -> dict[str, Any]:
    """The parent dies; its child, which inherited the LLM, lives on for a while."""
    _, executor = open_llm(engine)
    child = os.fork()
    if child == 0:
        os.close(1)
        os.close(2)
        time.sleep(30)
        os._exit(0)
    print(json.dumps({"executor": executor, "child": child}), flush=True)
    os._exit(0)


def forget(engine: Path) -> dict[str, Any]:
    """The LLM is dropped while its answers are kept."""
    llm, executor = open_llm(engine)
    outputs = llm.generate([[5], [6]], SHORT)
    running = llm.generate_async([5], LONG)
    del llm
    gc.collect()
    length = running.result().outputs[0].length
    deadline = time.monotonic() + 20
    while Path(f"/proc/{executor}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert isinstance(outputs, list)
    return {"length": length, "gone": not Path(f"/proc/{executor}").exists(), "kept": len(outputs)}


def exit_without_shutdown(engine: Path) -> dict[str, Any]:
    """The program ends while a request runs."""
    llm, executor = open_llm(engine)
    llm.generate_async([5], LONG)
    globals()["kept"] = llm
    return {"executor": executor}


if __name__ == "__main__":
    ways = (fork, fork_and_exit, leave_a_child, forget, exit_without_shutdown)
    print(json.dumps({way.__name__: way for way in ways}[sys.argv[1]](Path(sys.argv[2]))))
