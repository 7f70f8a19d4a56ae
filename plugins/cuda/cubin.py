"""What a cubin says of its kernel: registers, stack and parameters, read from the ELF file.

The attributes in `.nv.info` sections are not documented by NVIDIA; their numbers are those that
`readelf` shows for files whose figures `cuobjdump -res-usage` prints.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_REGISTERS, _FRAME, _PARAMETERS = 0x2F, 0x11, 0x19  # EIATTR: REGCOUNT, FRAME_SIZE, CBANK_PARAM_SIZE
_VALUE_FORMAT, _BLOCK_FORMAT = 3, 4  # of an attribute: a 16-bit value, or so many bytes behind it


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes: registers a thread, bytes of stack a thread, bytes of parameters."""

    registers: int
    stack_bytes: int
    parameter_bytes: int


def read_resources(cubin: bytes, symbol: str) -> Resources:
    """Return the resources of the only kernel of a cubin. Raises ValueError for anything else."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    sections = _sections(cubin)
    registers = stack = parameters = 0
    for kind, value in _attributes(sections.get(".nv.info", b"")):
        if kind == _REGISTERS:
            registers = max(registers, struct.unpack_from("<I", value, 4)[0])
        elif kind == _FRAME:
            stack = max(stack, struct.unpack_from("<I", value, 4)[0])
    for kind, value in _attributes(sections.get(f".nv.info.{symbol}", b"")):
        if kind == _PARAMETERS:
            parameters = struct.unpack_from("<H", value)[0]
    if not registers:
        raise ValueError(f"the cubin says nothing about a kernel {symbol}")
    return Resources(registers, stack, parameters)


def _sections(cubin: bytes) -> dict[str, bytes]:
    (offset,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + i * size) for i in range(count)]
    table = headers[names][4]
    found: dict[str, bytes] = {}
    for name, _, _, _, start, length in headers:
        end = cubin.index(b"\0", table + name)
        found[cubin[table + name : end].decode()] = cubin[start : start + length]
    return found


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    at = 0
    while at + 4 <= len(info):
        form, kind, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _BLOCK_FORMAT:
            found.append((kind, info[at : at + value]))
            at += value
        elif form == _VALUE_FORMAT:
            found.append((kind, struct.pack("<H", value)))
    return found
