"""How messages travel between two processes: ZeroMQ over Unix sockets in a private folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import zmq

from .messages import Command, Reply

MAX_RECEIVED = 1024  # messages taken at once, so that a flood cannot hold up the loop
_LINGER_MS = 2000  # that a closing executor waits until its last replies are with the client

In = TypeVar("In")
Out = TypeVar("Out")


class Channel(Protocol):
    """The executor's end: commands come in, replies go out."""

    def receive(self, timeout: float | None) -> list[Command]:
        """Return the commands that have come; wait up to `timeout` seconds for the first.

        None waits until one comes. The list may be empty earlier when a signal came.
        """
        ...

    def send(self, message: Reply) -> None:
        """Send one reply; never blocks."""
        ...


class ZmqChannel(Generic[In, Out]):
    """One end of the channel: one socket a direction, each used by one thread at a time.

    `wake_fd` is a descriptor that ends a wait when it becomes readable.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        receiver: zmq.Socket[bytes],
        sender: zmq.Socket[bytes],
        decoder: msgspec.msgpack.Decoder[In],
        wake_fd: int,
    ) -> None:
        self._context = context
        self._receiver = receiver
        self._sender = sender
        self._decode = decoder.decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._wake_fd = wake_fd
        self._poller = zmq.Poller()
        self._poller.register(receiver, zmq.POLLIN)
        self._poller.register(wake_fd, zmq.POLLIN)

    def receive(self, timeout: float | None) -> list[In]:
        """Return the messages that have come, as Channel.receive does."""
        messages = self._take()
        while not messages and timeout != 0:
            ready = self._poller.poll(None if timeout is None else int(timeout * 1e3))
            messages = self._take()
            if timeout is not None or any(source == self._wake_fd for source, _ in ready):
                break
        return messages

    def drain(self, timeout: float) -> list[In]:
        """Return the messages that have come, waiting for them alone and not for `wake_fd`."""
        self._receiver.poll(int(timeout * 1e3))
        return self._take()

    def send(self, message: Out) -> None:
        """Send one message; never blocks."""
        self._sender.send(self._encode(message), zmq.NOBLOCK)

    def connect(self, folder: Path) -> None:
        """Connect the client's sender, once the executor has said that it is there.

        From then on a message is queued also while the peer is gone, so that `send` cannot fail.
        """
        self._sender.connect(_address(folder, "commands"))

    def close(self) -> None:
        """Flush and release both sockets."""
        self._receiver.close()
        self._sender.close()
        self._context.term()

    def _take(self) -> list[In]:
        messages: list[In] = []
        try:
            while len(messages) < MAX_RECEIVED:
                messages.append(self._decode(self._receiver.recv(zmq.NOBLOCK)))
        except zmq.Again:
            pass
        return messages


def client_channel(folder: Path, wake_fd: int) -> ZmqChannel[Reply, Command]:
    """Bind the client's end to a socket in `folder`; its other one waits for `connect`."""
    context, receiver, sender = _sockets(linger=0)
    receiver.bind(_address(folder, "replies"))
    decoder: Any = msgspec.msgpack.Decoder(Reply)
    return ZmqChannel(context, receiver, sender, decoder, wake_fd)


def executor_channel(folder: Path, wake_fd: int) -> ZmqChannel[Command, Reply]:
    """Open the executor's end, whose client is bound in `folder` already."""
    context, receiver, sender = _sockets(linger=_LINGER_MS)
    receiver.bind(_address(folder, "commands"))
    sender.connect(_address(folder, "replies"))
    decoder: Any = msgspec.msgpack.Decoder(Command)
    return ZmqChannel(context, receiver, sender, decoder, wake_fd)


def _sockets(
    linger: int,
) -> tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (receiver, sender):
        socket.set_hwm(0)  # no limit: a full queue would block the loop or lose a message
        socket.setsockopt(zmq.LINGER, linger)
    return context, receiver, sender


def _address(folder: Path, name: str) -> str:
    return f"ipc://{folder / name}"
