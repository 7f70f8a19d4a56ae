import os
import socket
import threading
from collections.abc import Iterator

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
from enginewright.executor.transport import SocketChannel, client_channel, executor_channel
from enginewright.runtime.errors import (
    ContextLengthError,
    EnginewrightError,
    OutOfMemoryError,
    OverloadedError,
    RequestError,
    StepFailedError,
)

Ends = tuple[SocketChannel[Reply, Command], SocketChannel[Command, Reply], int]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    client, executor = client_channel(ours), executor_channel(theirs, read)
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


def test_what_the_system_does_not_take_is_sent_later_in_order(ends: Ends) -> None:
    client, executor, _ = ends
    prompts = [[number] * 20_000 for number in range(100)]
    for number, prompt in enumerate(prompts):  # far more than a socket holds; nobody reads yet
        client.send(Submit(str(number), prompt, TokenParams(), 0.0))
    executor.send(StatsReply({"here": 1}))
    received: list[Command] = []
    while len(received) < len(prompts):
        client.receive(0)
        received += executor.receive(0)
    assert [command.prompt_token_ids for command in received if isinstance(command, Submit)] == (
        prompts
    )


def test_a_waiting_receiver_sends_what_another_thread_left(ends: Ends) -> None:
    client, executor, _ = ends
    waiting = threading.Thread(target=client.receive, args=(None,))
    waiting.start()
    for _ in range(100):
        client.send(Submit("a", [1] * 20_000, TokenParams(), 0.0))
    received: list[Command] = []
    while len(received) < 100:
        received += executor.receive(None)
    executor.send(StatsReply({}))
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_closed_end_is_told_after_its_last_message() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    client, executor = client_channel(ours), executor_channel(theirs, read)
    executor.send(StatsReply({"last": 1}))
    executor.close()
    assert client.receive(None) == [StatsReply({"last": 1})]
    assert client.receive(None) == []
    client.send(Shutdown())  # dropped
    assert client.receive(0.01) == []
    client.close()
    os.close(read)
    os.close(write)


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
