"""The network: values, weights and nodes, and edits that keep uses and definitions in step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.dtypes import DType
from .model_config import ModelConfig

Dim = int | str
Shape = tuple[Dim, ...]
Array = npt.NDArray[Any]

TOKENS = "tokens"
"""Named dimension: the packed tokens of a step."""

ROWS = "rows"
"""Named dimension: the tokens of a step whose logits are wanted."""


class NetworkError(Exception):
    """A network breaks its own rules: a bug in a model file or a pass, never the user's fault."""


class Value:
    """One array that flows through the network. Values are compared by identity."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str, dtype: DType, shape: Shape) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.value}{list(self.shape)}"


class Weight(Value):
    """A constant that is read when asked for, and the format the engine will keep it in.

    `dtype` and `shape` are what `load()` returns; `format` ("f32", "bf16", "int8", "int4"),
    `group` (elements along the last axis that share a scale; 0: the whole row) and `rotation`
    (those that are rotated together before they are rounded; 0: none) are how the target stores it.
    `parts` names the weights that a fused one is made of, in order along axis 0.
    """

    __slots__ = ("_loader", "format", "group", "parts", "rotation")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        loader: Callable[[], Array],
        *,
        dtype: DType = DType.F32,
        parts: Sequence[Weight] = (),
    ) -> None:
        super().__init__(name, dtype, shape)
        self.format = "f32"
        self.group = 0
        self.rotation = 0
        self.parts: tuple[Weight, ...] = tuple(parts)
        self._loader = loader

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, which in a weight has no named dimension."""
        return tuple(int(size) for size in self.shape)

    def load(self) -> Array:
        """Read the array anew; nothing is kept. Raises NetworkError if its shape has changed."""
        array = self._loader()
        if array.shape != self.shape:
            raise NetworkError(f"{self.name} loads as {array.shape}, expected {self.shape}")
        return array


def concatenate_weights(name: str, parts: Sequence[Weight]) -> Weight:
    """Return one weight whose rows are those of `parts`, one after the other, read lazily."""
    rows = sum(part.sizes[0] for part in parts)
    if any(part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype for part in parts):
        raise NetworkError(f"cannot stack {list(parts)} along their first axis")
    shape = (rows, *parts[0].sizes[1:])

    def load() -> Array:
        array = np.empty(shape, parts[0].dtype.numpy)
        start = 0
        for part in parts:
            array[start : start + part.sizes[0]] = part.load()
            start += part.sizes[0]
        return array

    return Weight(name, shape, load, dtype=parts[0].dtype, parts=parts)


class Node:
    """One operation. `inputs` has an entry for every parameter of the op; None is an absent one.

    Change the inputs of a node that stands in a network through `Network.set_input` only.
    """

    __slots__ = ("attrs", "inputs", "op", "outputs")

    def __init__(
        self,
        op: str,
        inputs: Iterable[Value | None],
        outputs: Iterable[Value],
        attrs: dict[str, Any] | None = None,
    ) -> None:
        self.op = op
        self.inputs: list[Value | None] = list(inputs)
        self.outputs: list[Value] = list(outputs)
        self.attrs: dict[str, Any] = dict(attrs or {})

    @property
    def output(self) -> Value:
        """The first output; every op has one."""
        return self.outputs[0]

    def __repr__(self) -> str:
        names = ", ".join("-" if value is None else value.name for value in self.inputs)
        return f"{self.output.name} = {self.op}({names})"


class Network:
    """An ordered list of nodes from `inputs` to `outputs`, and who uses and defines each value."""

    def __init__(self, config: ModelConfig, inputs: Sequence[Value]) -> None:
        self.config = config
        self.inputs: list[Value] = list(inputs)
        self.outputs: list[Value] = []
        self.nodes: list[Node] = []
        self._producers: dict[Value, Node] = {}
        self._users: dict[Value, dict[Node, int]] = {}
        self._names: set[str] = {value.name for value in inputs}

    # Looking

    def producer(self, value: Value) -> Node | None:
        """Return the node that defines `value`; None for network inputs and weights."""
        return self._producers.get(value)

    def users(self, value: Value) -> list[Node]:
        """Return the nodes that read `value`, each once, in the order they began to."""
        return list(self._users.get(value, ()))

    def is_output(self, value: Value) -> bool:
        """Whether `value` is an output of the whole network."""
        return any(value is output for output in self.outputs)

    def weights(self) -> list[Weight]:
        """Return every weight once, in order of first use."""
        found: dict[Weight, None] = {}
        for node in self.nodes:
            for value in node.inputs:
                if isinstance(value, Weight):
                    found[value] = None
        return list(found)

    def fresh_name(self, base: str) -> str:
        """Return `base`, or `base` and the first number that makes it a name not yet used."""
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        return name

    # Editing

    def append(self, node: Node) -> Node:
        """Put `node` last; return it."""
        self._insert(len(self.nodes), node)
        return node

    def insert_before(self, anchor: Node, node: Node) -> Node:
        """Put `node` in front of `anchor`; return it."""
        self._insert(self.nodes.index(anchor), node)
        return node

    def insert_after(self, anchor: Node, node: Node) -> Node:
        """Put `node` behind `anchor`; return it."""
        self._insert(self.nodes.index(anchor) + 1, node)
        return node

    def remove(self, node: Node) -> None:
        """Take `node` out; raises NetworkError while one of its outputs is still wanted."""
        for value in node.outputs:
            if self._users.get(value) or self.is_output(value):
                raise NetworkError(f"cannot remove {node}: {value.name} is still used")
        self.nodes.remove(node)
        for value in node.inputs:
            self._forget_use(node, value)
        for value in node.outputs:
            del self._producers[value]
            self._names.discard(value.name)

    def set_input(self, node: Node, index: int, value: Value | None) -> None:
        """Let `node` read `value` as its input number `index`."""
        self._forget_use(node, node.inputs[index])
        node.inputs[index] = value
        self._note_use(node, value)

    def replace_all_uses(self, old: Value, new: Value) -> None:
        """Let every reader of `old`, and the network's outputs, read `new` instead."""
        for node in self.users(old):
            for index, value in enumerate(node.inputs):
                if value is old:
                    self.set_input(node, index, new)
        self.outputs = [new if value is old else value for value in self.outputs]

    # Proof

    def check(self) -> None:
        """Recount uses and definitions from the nodes; raises NetworkError if the books differ."""
        producers: dict[Value, Node] = {}
        users: dict[Value, dict[Node, int]] = {}
        for node in self.nodes:
            for value in node.outputs:
                if value in producers:
                    raise NetworkError(f"{value.name} is defined twice")
                producers[value] = node
            for value in node.inputs:
                if value is not None:
                    uses = users.setdefault(value, {})
                    uses[node] = uses.get(node, 0) + 1
        if producers != self._producers:
            raise NetworkError("the book of definitions differs from the nodes")
        if users != self._users:
            raise NetworkError("the book of uses differs from the nodes")

    def _insert(self, position: int, node: Node) -> None:
        for value in node.outputs:
            if value.name in self._names or value in self._producers:
                raise NetworkError(f"the name {value.name} is taken, cannot insert {node}")
        self.nodes.insert(position, node)
        for value in node.outputs:
            self._producers[value] = node
            self._names.add(value.name)
        for value in node.inputs:
            self._note_use(node, value)

    def _note_use(self, node: Node, value: Value | None) -> None:
        if value is not None:
            uses = self._users.setdefault(value, {})
            uses[node] = uses.get(node, 0) + 1

    def _forget_use(self, node: Node, value: Value | None) -> None:
        if value is None:
            return
        uses = self._users[value]
        uses[node] -= 1
        if uses[node] == 0:
            del uses[node]
        if not uses:
            del self._users[value]
