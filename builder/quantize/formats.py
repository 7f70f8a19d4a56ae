"""The number formats that weights can be stored in, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass

from .rotation import BLOCK


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One weight format: the bits of an element and of the scale that a group of them shares."""

    name: str
    bits: int
    scale_bits: int = 0  # of a group's scale, and of its minimum if there is one; 0: there are none
    rotation: int = 0  # elements that are rotated together before they are rounded; 0: none are
    fixed_group: int = 0  # the only group that the format has; 0: it is chosen

    def bytes(self, elements: int, group: int) -> int:
        """Bytes that `elements` take with one scale every `group` of them."""
        scales = -(-elements // group) if self.scale_bits and group else 0
        return (elements * self.bits + scales * self.scale_bits + 7) // 8

    def group(self, columns: int, limit: int) -> int:
        """Elements along k that share a scale: at most `limit`, whole blocks that divide the row.

        A row is padded to whole blocks, never to whole groups; 0: the whole row, or none do.
        """
        if not self.rotation:
            return self.fixed_group
        blocks = -(-columns // self.rotation)
        most = max(1, limit // self.rotation)
        return self.rotation * max(n for n in range(1, most + 1) if blocks % n == 0)


FORMATS = {
    "f32": QuantFormat("f32", 32),
    "bf16": QuantFormat("bf16", 16),
    "f16": QuantFormat("f16", 16),
    "int8": QuantFormat("int8", 8, scale_bits=16, rotation=BLOCK),
    "fp8": QuantFormat("fp8", 8, scale_bits=16),  # e4m3, one scale a row
    # With a scale and a minimum: what a CPU engine means by int4.
    "uint4": QuantFormat("uint4", 4, scale_bits=32, fixed_group=32),
    "int4": QuantFormat("int4", 4, scale_bits=16),
}
