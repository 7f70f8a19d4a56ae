"""A small HTTP/1.1 client over asyncio streams: what a load generator needs, no more."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...runtime.errors import InputError

_LINE_LIMIT = 1 << 20  # bytes of a head or of an event


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class HttpClient:
    """Connections to one server, used again where they can be. Belongs to one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Take the server's address; raises InputError if it is none."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no address of a server; write http://HOST:PORT")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        given = {"host": parts.netloc, **(headers or {})}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET."""
        status, chunks = await self.send("GET", path, b"")
        return status, b"".join([chunk async for chunk in chunks])

    async def post(self, path: str, body: bytes) -> tuple[int, AsyncIterator[bytes]]:
        """Return the status of a POST and its body's chunks, as they come."""
        return await self.send("POST", path, body)

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, AsyncIterator[bytes]]:
        """Send a request; the chunks must be read to their end. Raises OSError."""
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection = await self._take_idle() or await self._connect()
        try:
            connection.writer.write(head.encode() + body)
            status, headers = await _read_head(connection.reader)
        except (OSError, EOFError) as error:
            await _end(connection)
            raise ConnectionError(f"the server closed the connection: {error!r}") from error
        return status, self._chunks(connection, headers)

    async def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            await _end(self._idle.pop())

    async def _take_idle(self) -> _Connection | None:
        """Return a connection that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
            await _end(connection)
        return None

    async def _connect(self) -> _Connection:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._ssl, limit=_LINE_LIMIT
        )
        return _Connection(reader, writer)

    async def _chunks(
        self, connection: _Connection, headers: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        whole = False
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int(await connection.reader.readline(), 16):
                    yield (await connection.reader.readexactly(size + 2))[:-2]
                await connection.reader.readline()
            else:
                size = int(headers.get("content-length", "0"))
                if size:
                    yield await connection.reader.readexactly(size)
            whole = True
        except (OSError, EOFError, ValueError) as error:
            raise ConnectionError(f"the answer broke off: {error!r}") from error
        finally:
            if whole and headers.get("connection", "").lower() != "close":
                self._idle.append(connection)
            else:
                await _end(connection)


async def _end(connection: _Connection) -> None:
    connection.writer.close()
    with suppress(OSError):
        await connection.writer.wait_closed()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers
