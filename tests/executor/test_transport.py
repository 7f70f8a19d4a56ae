import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewright.executor.messages import (
    Abort,
    Command,
    ExecutorInfo,
    Failed,
    GetStats,
    Ready,
    Reply,
    Shutdown,
    StatsReply,
    StepOutputs,
    StepStats,
    Submit,
    TokenLogprob,
    TokenOutput,
    error_info,
    to_exception,
)
from enginewright.executor.sampling import TokenParams
from enginewright.executor.transport import ZmqChannel, client_channel, executor_channel
from enginewright.runtime.errors import (
    ContextLengthError,
    EnginewrightError,
    OutOfMemoryError,
    OverloadedError,
    RequestError,
    StepFailedError,
)

Ends = tuple[ZmqChannel[Reply, Command], ZmqChannel[Command, Reply], int]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with tempfile.TemporaryDirectory(prefix="t") as name:
        read, write = os.pipe()
        client = client_channel(Path(name), read)
        executor = executor_channel(Path(name), read)
        client.connect(Path(name))
        yield client, executor, write
        client.close()
        executor.close()
        os.close(read)
        os.close(write)


def test_every_message_arrives_as_it_was_sent(ends: Ends) -> None:
    client, executor, _ = ends
    params = TokenParams(seed=(1 << 64) - 1, logit_bias={3: -100.0}, eos_token_ids=(1, 2))
    commands: list[Command] = [
        Submit("a", [1, 2, 3], params, 0.5),
        Abort("a"),
        GetStats(),
        Shutdown(),
    ]
    output = TokenOutput("a", [5], [TokenLogprob(5, -0.5, [(5, -0.5)])], "stop", 5)
    replies: list[Reply] = [
        Ready(ExecutorInfo(1, 2, 3, 4, 5, 6, {"name": "x"}, 0.1)),
        Failed(error_info(OutOfMemoryError("too little"))),
        StepOutputs([output, TokenOutput("b", finish_reason="cancelled")], StepStats(1, 2, 3, 4)),
        StatsReply({"a": [1, 2.5]}),
    ]
    for command in commands:
        client.send(command)
    for reply in replies:
        executor.send(reply)
    received: list[Command] = []
    while len(received) < len(commands):
        received += executor.receive(None)
    answered: list[Reply] = []
    while len(answered) < len(replies):
        answered += client.receive(None)
    assert received == commands
    assert answered == replies


def test_receiving_without_waiting_and_being_woken(ends: Ends) -> None:
    _, executor, write = ends
    assert executor.receive(0) == []
    assert executor.receive(0.01) == []
    os.write(write, b"x")
    assert executor.receive(None) == []


@pytest.mark.parametrize(
    "error",
    [
        RequestError("bad", "prompt"),
        ContextLengthError("long", "max_tokens"),
        OverloadedError("full"),
        StepFailedError("failed"),
        EnginewrightError("other"),
    ],
)
def test_errors_cross_the_border(error: EnginewrightError) -> None:
    again = to_exception(error_info(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "param", None) == getattr(error, "param", None)


def test_a_foreign_error_keeps_its_name() -> None:
    info = error_info(KeyError("x"))
    assert (info.message, info.code, info.http_status) == ("KeyError: 'x'", "internal_error", 500)
