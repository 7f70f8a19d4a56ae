"""The number formats that weights can be stored in, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """One weight format: the bits of an element and of the scale that a group of them shares."""

    name: str
    bits: int
    scale_bits: int = 0  # of a group's scale; 0: the format has none
    quantizes_activations: bool = False  # products run on integers, so activations are rounded too

    def bytes(self, elements: int, group: int) -> int:
        """Bytes that `elements` take with one scale every `group` of them."""
        scales = -(-elements // group) if self.scale_bits and group else 0
        return (elements * self.bits + scales * self.scale_bits + 7) // 8


FORMATS = {
    "f32": QuantFormat("f32", 32),
    "bf16": QuantFormat("bf16", 16),
    "f16": QuantFormat("f16", 16),
    "fp8": QuantFormat("fp8", 8, scale_bits=16),  # e4m3, one scale a row
    "int4": QuantFormat("int4", 4, scale_bits=16),
    "int8": QuantFormat("int8", 8, scale_bits=16, quantizes_activations=True),
}
