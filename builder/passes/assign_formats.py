"""assign_formats: every weight gets the format that the build's configuration gives it."""

from __future__ import annotations

from ..config import BuildConfig
from ..network import Network, Weight
from ..ops import LINEAR_OPS
from ..quantize.formats import FORMATS
from .base import Pass


class AssignFormats(Pass):
    """Matrices get the chosen format; norms, biases and rotary tables stay f32.

    The head has a format of its own. An embedding table is bf16 (f32 in an f32 engine), unless the
    head shares it: then the head's format holds. Runs after the fusions, which make new weights.
    """

    name = "assign_formats"
    requires = ("fuse_qkv", "fuse_gate_up")

    def __init__(self, config: BuildConfig) -> None:
        self._config = config

    def run(self, network: Network) -> bool:
        """Set `format`, `group` and `rotation` of every weight."""
        formats = {weight: "f32" for weight in network.weights()}
        table_format = "f32" if self._config.weights == "f32" else "bf16"
        if self._config.for_gpu:
            table_format = self._config.compute_dtype
        chosen_format = self._config.weight_format
        for ops, format in ((("embedding",), table_format), (LINEAR_OPS, chosen_format)):
            for node in network.nodes:
                matrix = node.inputs[1] if node.op in ops else None
                if isinstance(matrix, Weight):
                    is_head = network.is_output(node.output)
                    formats[matrix] = self._config.head_format if is_head else format
        modified = False
        for weight, format in formats.items():
            form = FORMATS[format]
            group = self._config.group_of(form, weight.sizes[-1])
            chosen = (format, group, self._config.rotation_of(form))
            if (weight.format, weight.group, weight.rotation) != chosen:
                weight.format, weight.group, weight.rotation = chosen
                modified = True
        return modified
