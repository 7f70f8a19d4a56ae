"""What lowering gives and emission prints: kernel calls, their buffers and their weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...network import Weight
from .pack import PackedLayout


class Place(Enum):
    """Where a buffer lives; plugins/cpu/step.h says what each place is for."""

    STREAM = "stream"  # a row a token, through the whole step
    MINE = "mine"  # local, written by row ops
    OURS = "ours"  # local, written by ops that are split by columns
    LOGITS = "logits"


class Split(Enum):
    """How a call is shared by the threads."""

    ROWS = "rows"
    COLUMNS = "columns"
    ITEMS = "items"  # attention: handed out one by one


@dataclass(eq=False, slots=True)
class Buffer:
    """The memory of one value: `row_bytes` a row, at `offset` times the rows of its place."""

    name: str
    row_bytes: int
    place: Place
    first: int = -1  # first and last interval between barriers in which it is used
    last: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer, or a run of its columns that starts `skip` bytes into each row."""

    buffer: Buffer
    skip: int = 0


@dataclass(eq=False, slots=True)
class PackedWeight:
    """A weight as the engine file holds it."""

    weight: Weight
    layout: PackedLayout
    offset: int = -1  # into the weights file


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of the program: what its tactics are chosen and remembered by."""

    kernel: str
    kind: str  # what becomes of the sums: store, swiglu, round or head
    rows: int  # N
    columns: int  # K

    @property
    def name(self) -> str:
        """For people, and the key of a timing cache."""
        return f"{self.kind} {self.rows}x{self.columns} {self.kernel}"


@dataclass(slots=True)
class KernelCall:
    """One call of one kernel. `code` is C with {names} of operands, weights and spans in it.

    For an operand `x`, `{x}` is the address of its first row and `{x_stride}` its row's bytes; for
    a weight `w`, `{w}` is its address; `{first}` and `{last}` bound the rows of a row op.
    """

    code: str
    split: Split
    reads: dict[str, Operand]
    writes: dict[str, Operand]
    weights: dict[str, Weight] = field(default_factory=dict[str, Weight])
    comment: str = ""
    name: str = ""  # for people: the op and, for a product, its sizes
    slot: int = 0  # of the profile
    product: int | None = None  # its number, where it is one
    starts_segment: bool = False  # attention: everything before it must have been done by everybody
    groups: int = 0  # not 0: nothing is left to do where the product before rounds them itself
    barrier: str = ""  # "", "all" or "rows": what must be waited for before it
