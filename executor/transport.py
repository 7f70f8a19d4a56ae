"""How messages travel between two processes: length and bytes over a pair of connected sockets."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from .messages import Command, Reply

MAX_RECEIVED = 1024  # messages taken at once, so that a flood cannot hold up the loop
_CHUNK = 1 << 16  # bytes read at once
_LENGTH = 4  # bytes of a message's length, little-endian
_LINGER_SECONDS = 2.0  # that a closing end waits until its last messages are with the system

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


class SocketChannel(Generic[In, Out]):
    """One end of a pair of stream sockets. One thread receives, any may send.

    What the system does not take at once is kept, and sent when it has room by the thread that
    receives. `wake_fd` is a descriptor that ends a wait when it becomes readable.
    """

    def __init__(
        self,
        end: socket.socket,
        decoder: msgspec.msgpack.Decoder[In],
        wake_fd: int | None = None,
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._decode = decoder.decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._received = bytearray()
        self._unsent = bytearray()
        self._lock = threading.Lock()  # over what is sent
        self._ended = False  # the other end is closed, and all that it sent was received
        self._wake_fd = wake_fd
        self._flush_fd = os.eventfd(0, os.EFD_NONBLOCK)  # raised when something is kept
        self._poller = select.poll()
        for fd in (self._flush_fd, wake_fd):
            if fd is not None:
                self._poller.register(fd, select.POLLIN)

    def receive(self, timeout: float | None) -> list[In]:
        """Return the messages that have come, as Channel.receive does.

        With no `timeout` an empty list means that the other end is closed, or `wake_fd` readable.
        """
        messages = self._take()
        while not messages and timeout != 0 and not self._ended:
            wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            self._poller.register(self._socket, wanted)
            ready = self._poller.poll(None if timeout is None else timeout * 1e3)
            with suppress(BlockingIOError):
                os.eventfd_read(self._flush_fd)
            messages = self._take()
            if timeout is not None or any(fd == self._wake_fd for fd, _ in ready):
                break
        return messages

    def send(self, message: Out) -> None:
        """Send one message; never blocks. When the other end is closed it is dropped."""
        data = self._encode(message)
        frame = len(data).to_bytes(_LENGTH, "little") + data
        with self._lock:
            if self._unsent:
                self._unsent += frame
                return
            sent = self._write(frame)
            if sent == len(frame):
                return
            self._unsent += memoryview(frame)[sent:]
        os.eventfd_write(self._flush_fd, 1)

    def close(self) -> None:
        """Send what was kept, if the other end takes it in time, and release the socket."""
        with suppress(OSError):
            self._socket.settimeout(_LINGER_SECONDS)
            self._socket.sendall(self._unsent)
        self._socket.close()
        os.close(self._flush_fd)

    def _take(self) -> list[In]:
        if self._unsent:
            with self._lock:
                del self._unsent[: self._write(self._unsent)]
        messages: list[In] = []
        while len(messages) < MAX_RECEIVED:
            size = self._read()
            messages += self._cut()
            if size < _CHUNK:
                break
        return messages

    def _write(self, data: bytes | bytearray) -> int:
        """Return how many bytes the system took; those for a closed end are taken by nobody."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _read(self) -> int:
        """Read a piece of what has come and return its size."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # the other end was closed with something unread
            data = b""
        self._ended = not data
        self._received += data
        return len(data)

    def _cut(self) -> list[In]:
        """Cut whole messages off what was read."""
        messages: list[In] = []
        view, at = memoryview(self._received), 0
        while at + _LENGTH <= len(view):
            end = at + _LENGTH + int.from_bytes(view[at : at + _LENGTH], "little")
            if end > len(view):
                break
            messages.append(self._decode(view[at + _LENGTH : end]))
            at = end
        view.release()
        del self._received[:at]
        return messages


def client_channel(end: socket.socket) -> SocketChannel[Reply, Command]:
    """Take over the client's end of a pair."""
    decoder: Any = msgspec.msgpack.Decoder(Reply)
    return SocketChannel(end, decoder)


def executor_channel(end: socket.socket, wake_fd: int) -> SocketChannel[Command, Reply]:
    """Take over the executor's end of a pair."""
    decoder: Any = msgspec.msgpack.Decoder(Command)
    return SocketChannel(end, decoder, wake_fd)
