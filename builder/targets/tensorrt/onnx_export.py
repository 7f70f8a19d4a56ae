"""The export: a network after its passes as an ONNX model with its weights beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ....runtime.cuda_contract import DOMAIN
from ....runtime.errors import UnsupportedModelError
from ...config import BuildConfig
from ...network import Network, Node, Value, Weight
from ...progress import Progress
from .attention import AttentionForm, CacheShape, GatherForm, PluginForm
from .onnx_graph import DTYPES, OnnxGraph
from .weights import matrix, plain


def attention_shape(network: Network) -> tuple[int, int]:
    """Return (KV heads, head size) of every layer.

    Raises UnsupportedModelError when layers differ.
    """
    shapes = {
        (node.attrs["num_kv_heads"], node.attrs["head_dim"])
        for node in network.nodes
        if node.op == "attention"
    }
    if len(shapes) != 1:
        raise UnsupportedModelError(
            f"the TensorRT targets need one KV shape for all layers, found {sorted(shapes)}"
        )
    heads, width = shapes.pop()
    return int(heads), int(width)


def export(
    network: Network, config: BuildConfig, path: Path, progress: Progress, data: Path | None = None
) -> None:
    """Write `network` to `path`, and its weights to `data` in the same folder.

    The dimensions are named `seqs`, `tokens`, `blocks`, `rows` and `pool_blocks`; inputs and
    outputs are those of runtime.session_tensorrt. Raises UnsupportedModelError for an op that has
    no ONNX form here.
    """
    with OnnxGraph(path, data or path.with_suffix(".data"), DOMAIN) as graph:
        _Exporter(network, config, graph, progress).run()
        graph.save(network.config.family)


class _Exporter:
    """Walks the nodes; `_values` holds the ONNX name of every value so far."""

    def __init__(
        self, network: Network, config: BuildConfig, graph: OnnxGraph, progress: Progress
    ) -> None:
        self._network = network
        self._graph = graph
        self._progress = progress
        self._compute = config.compute_dtype
        kv_heads, head_dim = attention_shape(network)
        cache = CacheShape(kv_heads, head_dim, config.kv_format, self._compute)
        form = GatherForm if config.gpu.attention == "gather" else PluginForm
        self._form: AttentionForm = form(graph, cache)
        self._rows = graph.input("logit_rows", "i32", ("rows",))
        self._previous = graph.input("previous_tokens", "i32", (config.max_batch_size,))
        self._values: dict[Value, str] = {}
        self._matrices: dict[Weight, str] = {}
        self._tables: dict[Weight, str] = {}
        self._rotations: dict[Weight, tuple[str, str]] = {}

    def run(self) -> None:
        """Export every node and the logits."""
        g, network = self._graph, self._network
        self._values[network.inputs[0]] = self._resolve_ids()
        handlers: dict[str, Callable[[Node], str | None]] = {
            "embedding": self._embedding,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "add": lambda node: self._elementwise(node, "Add"),
            "mul": lambda node: self._elementwise(node, "Mul"),
            "silu": lambda node: self._silu(self._in(node, 0), node.output.name),
            "swiglu": lambda node: self._swiglu(self._in(node, 0), node, node.output.name),
            "slice": self._slice,
            "rope": self._rope,
            "kv_write": self._kv_write,
            "attention": lambda node: self._form.attend(node, self._in(node, 0)),
            "gather_rows": self._gather_rows,
        }
        for node in network.nodes:
            handler = handlers.get(node.op)
            if handler is None:
                raise UnsupportedModelError(
                    f"the TensorRT targets have no form of the op {node.op}, which this "
                    f"{network.config.family} model uses; build it with --target cpu"
                )
            made = handler(node)
            if made is not None:
                self._values[node.output] = made
            self._progress.advance()
        logits = self._values[network.outputs[0]]
        wide = g.op("Cast", [logits], "logits_f32", to=DTYPES["f32"])
        g.output(wide, "logits", "f32", ("rows", network.config.vocab_size))

    def _resolve_ids(self) -> str:
        """Replace an id of -1 - r by what row r of the step before sampled."""
        g = self._graph
        ids = self._form.ids()
        row = g.op("Sub", [g.scalar(-1, "i32"), ids], "previous_row")
        row = g.op("Max", [row, g.scalar(0, "i32")], "previous_row_or_0")
        sampled = g.op("Gather", [self._previous, row], "previous_token", axis=0)
        waits = g.op("Less", [ids, g.scalar(0, "i32")], "waits_for_token")
        return g.op("Where", [waits, sampled, ids], "token_ids")

    def _in(self, node: Node, index: int) -> str:
        value = node.inputs[index]
        assert value is not None, node
        return self._values[value]

    def _weight(self, node: Node, index: int) -> Weight:
        value = node.inputs[index]
        assert isinstance(value, Weight), node
        return value

    def _plain(self, weight: Weight) -> str:
        if weight not in self._tables:
            self._tables[weight] = plain(self._graph, weight, self._compute)
        return self._tables[weight]

    def _embedding(self, node: Node) -> str:
        table = self._plain(self._weight(node, 1))
        return self._graph.op("Gather", [table, self._in(node, 0)], node.output.name, axis=0)

    def _rms_norm(self, node: Node) -> str:
        g, name, weight = self._graph, node.output.name, self._weight(node, 1)
        x, width = self._in(node, 0), weight.sizes[0]
        whole = int(node.output.shape[-1])
        axes = [0] * self._axes(node.output)
        if whole != width:  # one norm a head
            x = g.op("Reshape", [x, g.ints(*axes, whole // width, width)], f"{name}.runs")
        eps = float(node.attrs["eps"])
        y = g.op("RMSNormalization", [x, self._plain(weight)], f"{name}.norm", axis=-1, epsilon=eps)
        return y if whole == width else g.op("Reshape", [y, g.ints(*axes, whole)], name)

    def _axes(self, value: Value) -> int:
        """Return how many axes of tokens or rows stand in front of the last one."""
        return 1 if value.shape[0] == "rows" else len(self._form.prefix)

    def _linear(self, node: Node) -> str:
        g, name, weight = self._graph, node.output.name, self._weight(node, 1)
        if weight not in self._matrices:
            self._matrices[weight] = matrix(g, weight, self._compute)
        y = g.op("MatMul", [self._in(node, 0), self._matrices[weight]], f"{name}.product")
        if node.inputs[2] is not None:
            y = g.op("Add", [y, self._plain(self._weight(node, 2))], f"{name}.biased")
        if node.attrs["epilogue"] == "swiglu":
            y = self._swiglu(y, node, f"{name}.gated")
        if node.inputs[3] is not None:
            y = g.op("Add", [y, self._in(node, 3)], f"{name}.sum")
        return y

    def _elementwise(self, node: Node, op: str) -> str:
        return self._graph.op(op, [self._in(node, 0), self._in(node, 1)], node.output.name)

    def _silu(self, x: str, name: str) -> str:
        gate = self._graph.op("Sigmoid", [x], f"{name}.sigmoid")
        return self._graph.op("Mul", [x, gate], name)

    def _swiglu(self, x: str, node: Node, name: str) -> str:
        g, half = self._graph, int(node.output.shape[-1])
        gate, up = self._run(x, 0, half, f"{name}.gate"), self._run(x, half, half, f"{name}.up")
        return g.op("Mul", [self._silu(gate, f"{name}.silu"), up], name)

    def _slice(self, node: Node) -> str:
        start, size = int(node.attrs["start"]), int(node.attrs["size"])
        return self._run(self._in(node, 0), start, size, node.output.name)

    def _run(self, x: str, start: int, size: int, name: str) -> str:
        """Return `size` elements of the last axis."""
        g = self._graph
        return g.op("Slice", [x, g.ints(start), g.ints(start + size), g.ints(-1)], name)

    def _rope(self, node: Node) -> str:
        g, name, table = self._graph, node.output.name, self._weight(node, 1)
        if table not in self._rotations:
            both = self._plain(table)
            half = table.sizes[1] // 2
            cos, sin = self._run(both, 0, half, "rope.cos"), self._run(both, half, half, "rope.sin")
            self._rotations[table] = (cos, sin)
        x, positions = self._form.rope_input(self._in(node, 0), name)
        heads = int(node.output.shape[-1]) // int(node.attrs["head_dim"])
        inputs = [x, *self._rotations[table], positions]
        y = g.op("RotaryEmbedding", inputs, f"{name}.turned", num_heads=heads)
        return self._form.rope_output(y, name)

    def _kv_write(self, node: Node) -> None:
        self._form.write(node, self._in(node, 0), self._in(node, 1))

    def _gather_rows(self, node: Node) -> str:
        g, name = self._graph, node.output.name
        x = self._in(node, 0)
        if len(self._form.prefix) > 1:
            x = g.op("Reshape", [x, g.ints(-1, int(node.output.shape[-1]))], f"{name}.flat")
        return g.op("Gather", [x, self._rows], name, axis=0)
