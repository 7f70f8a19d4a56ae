"""Lowering: each node becomes a kernel call. Op and types choose the kernel, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from ....runtime.dtypes import DType
from ...network import ROWS, NetworkError, Node, Value, Weight
from .calls import Buffer, KernelCall, Operand, Place, Product, Split
from .isa import IsaLevel
from .pack import DOT_FORMATS, PackedLayout, dot_width, plan_bias, plan_panels, plan_table

_ROWS = "{first}, {last}"  # of a row op
# As plugins/cpu/panels.h has them.
KERNELS = {"f32": "EW_F32", "bf16": "EW_BF16", "int8": "EW_Q8", "uint4": "EW_Q4", "fp8": "EW_FP8"}


def q8_row_bytes(width: int, group: int) -> int:
    """Bytes of a row of int8 activations: the values, then a scale and an offset a group."""
    groups = -(-width // group)
    return _round(groups * group + 8 * groups)


def kernel_name(layout: PackedLayout) -> str:
    """Name the product kernel of a packed weight, as emission defines it."""
    return f"{layout.format}_{layout.group}" if layout.group else layout.format


class Lowering:
    """Turns nodes into calls, giving every value a buffer and every weight a layout."""

    def __init__(
        self,
        level: IsaLevel,
        stream: set[Value],
        head: Node,
        last_reader: Callable[[Value], Node | None],
    ) -> None:
        self.level = level
        self.last_reader = last_reader
        self.stream = stream  # values that live across segments
        self.head = head  # the node whose output leaves the engine
        self.layouts: dict[Weight, PackedLayout] = {}
        self.operands: dict[Value, Operand] = {}
        self.row_groups: dict[Value, int] = {}  # of Q8 values
        self.products: dict[str, PackedLayout] = {}  # by kernel_name; one that has the format
        self.quantizers: set[tuple[int, int]] = set()  # group, rotation
        self.rounding: dict[str, tuple[PackedLayout, int, int]] = {}  # products, group, rotation
        self.product_calls: list[Product] = []
        self.by_columns: dict[Value, tuple[Operand, int]] = {}  # Q8: where a product rounds, groups

    def share(self, value: Value, with_value: Value) -> None:
        """Let `value` use the memory of another that ends where it begins."""
        self.operands[value] = self.operands[with_value]

    def lower(self, node: Node, layer_step: int) -> list[KernelCall]:
        """Return the calls of one node. Its layer number grows by `layer_step` an iteration."""
        if node.op == "linear_quantize":
            return self._linear_quantize(node)
        lowering: dict[str, Callable[[Node], KernelCall | None]] = {
            "embedding": self._embedding,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "add": lambda n: self._elementwise(n, "EW_ADD"),
            "mul": lambda n: self._elementwise(n, "EW_MUL"),
            "silu": lambda n: self._elementwise(n, "EW_SILU"),
            "swiglu": self._swiglu,
            "rope": self._rope,
            "slice": self._slice,
            "quantize": self._quantize,
            "round_bf16": self._round_bf16,
            "rms_norm_quantize": self._rms_norm_quantize,
            "gather_rows": self._gather_rows,
            "kv_write": lambda n: self._kv_write(n, layer_step),
            "attention": lambda n: self._attention(n, layer_step),
        }
        if node.op not in lowering:
            raise NetworkError(f"the CPU target has no kernel for {node.op!r} ({node})")
        call = lowering[node.op](node)
        if call is None:
            return []
        return [_named(call, node)]

    def layout_of(self, value: Value | None) -> PackedLayout:
        """Return how a weight that was lowered lies in the file."""
        assert isinstance(value, Weight)
        return self.layouts[value]

    # Memory

    def _output(self, value: Value, split: Split) -> Operand:
        """Give a value that a call defines its buffer."""
        if value in self.stream:
            place = Place.STREAM
        else:
            place = Place.MINE if split is Split.ROWS else Place.OURS
        width = int(value.shape[-1])
        if value.dtype is DType.Q8:
            row_bytes = q8_row_bytes(width, self.row_groups[value])
        elif value.dtype is DType.BF16:
            row_bytes = _round(dot_width(width, self.level) * 2)
        else:
            row_bytes = self._float_row_bytes(width)
        operand = Operand(Buffer(value.name, row_bytes, place))
        self.operands[value] = operand
        return operand

    def _float_row_bytes(self, width: int) -> int:
        """Bytes of whole panels, so that a kernel may write all columns of its last one."""
        return _round(-(-width // self.level.panel) * self.level.panel * 4)

    def _leaving(self, node: Node) -> Operand:
        """Give the network's output its place: where the driver looks for logits."""
        operand = Operand(Buffer("logits", 0, Place.LOGITS))
        self.operands[node.output] = operand
        return operand

    def _input(self, value: Value | None) -> Operand:
        if value is None or value not in self.operands:
            raise NetworkError(f"{value} is read before it is written")
        return self.operands[value]

    def _weight(self, value: Value | None, layout: Callable[[Weight], PackedLayout]) -> Weight:
        if not isinstance(value, Weight):
            raise NetworkError(f"{value} is not a weight")
        planned = layout(value)
        if self.layouts.setdefault(value, planned) != planned:
            raise NetworkError(f"{value.name} is wanted in two layouts")
        return value

    def _matrix(self, value: Value | None, interleaved: bool = False) -> Weight:
        return self._weight(value, lambda w: plan_panels(w, self.level, interleaved))

    def _table(self, value: Value | None) -> Weight:
        return self._weight(value, plan_table)

    # Kernels

    def _embedding(self, node: Node) -> KernelCall:
        table, y = node.inputs[1], self._output(node.output, Split.ROWS)
        width = int(node.output.shape[-1])
        shared = table is self.head.inputs[1]
        weight = self._matrix(table) if shared else self._table(table)
        layout = self.layouts[weight]
        kernel = {"int8": "q8"}.get(layout.format, layout.format)
        kernel = f"ew_embed_{kernel}" if shared else f"ew_embed_rows_{kernel}"
        group = f"{layout.group}, " if layout.group else ""
        code = (
            f"{kernel}({{table}}, {layout.panel_bytes}, {group}p->ids + s->base, "
            f"{{y}}, {{y_stride}}, {width}, {{first}}, {{last}});"
        )
        return KernelCall(code, Split.ROWS, {}, {"y": y}, {"table": weight})

    def _rms_norm(self, node: Node) -> KernelCall:
        x, weight = self._input(node.inputs[0]), self._table(node.inputs[1])
        y = self._leaving(node) if node is self.head else self._output(node.output, Split.ROWS)
        width, run = int(node.output.shape[-1]), weight.sizes[0]
        code = (
            "ew_rms_norm({x}, {x_stride}, {y}, {y_stride}, (const float *){w}, "
            f"{width}, {run}, {_float(node.attrs['eps'])}, {{first}}, {{last}});"
        )
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y}, {"w": weight})

    def _quantize(self, node: Node) -> KernelCall:
        x = self._input(node.inputs[0])
        y, kernel, sizes = self._rounded(node, Split.ROWS)
        code = f"ew_quantize_{kernel}({{x}}, {{x_stride}}, {{y}}, {{y_stride}}, {sizes}, {_ROWS});"
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y})

    def _round_bf16(self, node: Node) -> KernelCall:
        width = int(node.output.shape[-1])
        x, y = self._input(node.inputs[0]), self._output(node.output, Split.ROWS)
        k = dot_width(width, self.level)
        code = f"ew_round_bf16({{x}}, {{x_stride}}, {{y}}, {{y_stride}}, {width}, {k}, {_ROWS});"
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y})

    def _rms_norm_quantize(self, node: Node) -> KernelCall:
        x, weight = self._input(node.inputs[0]), self._table(node.inputs[1])
        y, kernel, sizes = self._rounded(node, Split.ROWS)
        code = (
            f"ew_rms_norm_quantize_{kernel}({{x}}, {{x_stride}}, {{y}}, {{y_stride}}, "
            f"(const float *){{w}}, {_float(node.attrs['eps'])}, {sizes}, {_ROWS});"
        )
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y}, {"w": weight})

    def _rounded(self, node: Node, split: Split) -> tuple[Operand, str, str]:
        """Give int8 rows their buffer; return it, the kernel's name, and the sizes it takes."""
        group, rotation = node.attrs["group"], node.attrs["rotation"]
        width = int(node.output.shape[-1])
        self.row_groups[node.output] = group
        self.quantizers.add((group, rotation))
        k = -(-width // group) * group
        return self._output(node.output, split), f"{group}_{rotation}", f"{width}, {k}"

    def _linear_quantize(self, node: Node) -> list[KernelCall]:
        """Lower a gated product with its rounding: in the product where its parts are whole groups.

        Where they are not, a second call rounds. Readers find the rows in the one place or the
        other by the same condition.
        """
        group, rotation = node.attrs["group"], node.attrs["rotation"]
        width = int(node.output.shape[-1])
        k, groups = -(-width // group) * group, -(-width // group)
        fields, reads, weights = self._product(node, swiglu=True)
        layout = self.layout_of(node.inputs[1])
        rounded, kernel, sizes = self._rounded(node, Split.ROWS)
        by_columns = Operand(
            Buffer(f"{node.output.name} by columns", rounded.buffer.row_bytes, Place.OURS)
        )
        self.by_columns[node.output] = by_columns, groups
        row_bytes = self._float_row_bytes(width)
        floats = Operand(Buffer(f"{node.output.name} in floats", row_bytes, Place.OURS))
        name = f"{kernel_name(layout)}_{kernel}"
        self.products[kernel_name(layout)] = layout
        self.rounding[name] = layout, group, rotation
        unit = group // (self.level.panel // 2)
        number = self._number(layout, "round")
        condition = f"ew_rounds_itself({groups}, s->parts)"
        fields += [".out = {y}", ".out_stride = {y_stride}"]
        scratch = "e->groups + (size_t)s->thread * EW_GROUP_ROWS * EW_MAX_GROUP"
        product = (
            f"ew_product m = {{{{{', '.join(fields)}}}}}; "
            f"ew_share(e, &m, s, {number}, {layout.panels}, {condition} ? {unit} : 1); "
            f"if ({condition}) ew_gemm_quantize_{name}(&m, {{q}}, {{q_stride}}, {k}, {scratch}); "
            f"else ew_gemm_swiglu_{kernel_name(layout)}(&m);"
        )
        quantize = (
            f"if (!{condition}) ew_quantize_{kernel}({{x}}, {{x_stride}}, {{y}}, {{y_stride}}, "
            f"{sizes}, {_ROWS});"
        )
        writes = {"y": floats, "q": by_columns}
        first = KernelCall(product, Split.COLUMNS, reads, writes, weights, product=number)
        second = KernelCall(quantize, Split.ROWS, {"x": floats}, {"y": rounded}, groups=groups)
        second.comment, second.name = f"round {node.output.name}", "quantize"
        return [_named(first, node), second]

    def _product(
        self, node: Node, swiglu: bool
    ) -> tuple[list[str], dict[str, Operand], dict[str, Weight]]:
        """Return the fields of a product that say what it reads, and what they name."""
        x_value, weight_value, bias_value = node.inputs[:3]
        weight = self._matrix(weight_value, swiglu)
        layout, x = self.layouts[weight], self._input(x_value)
        reads, weights, address = {"x": x}, {"w": weight}, "{x}"
        if x_value in self.by_columns:
            reads["x_by_columns"], groups = self.by_columns[x_value]
            address = f"ew_rounds_itself({groups}, s->parts) ? {{x_by_columns}} : {{x}}"
        fields = [
            ".panels = {w}",
            f".panel_bytes = {layout.panel_bytes}",
            f".k = {layout.k}",
            f".x = {address}",
            ".x_stride = {x_stride}",
        ]
        if bias_value is not None:
            weights["b"] = self._weight(bias_value, lambda w: plan_bias(w, self.level, swiglu))
            fields.append(".bias = (const float *){b}")
        assert x_value is not None
        rounded = self.level.dot_bf16 > 0 and layout.format in DOT_FORMATS
        group = self.row_groups.get(x_value, 0)
        if layout.group != group or (x_value.dtype is DType.BF16) != rounded:
            raise NetworkError(f"{node} multiplies {x_value} by a weight in {kernel_name(layout)}")
        return fields, reads, weights

    def _linear(self, node: Node) -> KernelCall:
        residual_value = node.inputs[3]
        swiglu = node.attrs["epilogue"] == "swiglu"
        fields, reads, weights = self._product(node, swiglu)
        layout = self.layout_of(node.inputs[1])
        fields += [".out = {y}", ".out_stride = {y_stride}"]
        residual = None if residual_value is None else self._input(residual_value)
        if residual is not None:
            reads["residual"] = residual
            fields += [".residual = {residual}", ".residual_stride = {residual_stride}"]
        kernel = kernel_name(layout)
        kind = "head" if node is self.head else "swiglu" if swiglu else "store"
        number = self._number(layout, kind)
        product = (
            f"ew_product m = {{{{{', '.join(fields)}}}}}; "
            f"ew_share(e, &m, s, {number}, {layout.panels}, 1);"
        )
        if node is self.head:
            y = self._leaving(node)
            best = "e->best + (size_t)s->part * e->options.max_batch_size"
            run = f"ew_head_{kernel}(&m, {best}, p->wanted, EW_VOCAB);"
        else:
            if residual_value is not None and self._ends_here(residual_value, node):
                self.share(node.output, residual_value)
                y = self.operands[node.output]
            else:
                y = self._output(node.output, Split.COLUMNS)
            self.products[kernel] = layout
            run = f"ew_gemm_{'swiglu_' if swiglu else ''}{kernel}(&m);"
        code = f"{product} {run}"
        return KernelCall(code, Split.COLUMNS, reads, {"y": y}, weights, product=number)

    def _number(self, layout: PackedLayout, kind: str) -> int:
        product = Product(kernel_name(layout), kind, layout.rows, layout.columns)
        self.product_calls.append(product)
        return len(self.product_calls) - 1

    def _ends_here(self, value: Value, node: Node) -> bool:
        """Whether `node` is the last reader of a value in the stream, and may write over it."""
        operand = self.operands[value]
        in_stream = operand.buffer.place is Place.STREAM and not operand.skip
        return in_stream and self.last_reader(value) is node

    def _elementwise(self, node: Node, kind: str) -> KernelCall:
        reads = {"a": self._input(node.inputs[0])}
        b, b_stride = "0", "0"
        if len(node.inputs) > 1:
            reads["b"] = self._input(node.inputs[1])
            b, b_stride = "{b}", "{b_stride}"
        y = self._output(node.output, Split.ROWS)
        code = (
            f"ew_elementwise({kind}, {{a}}, {{a_stride}}, {b}, {b_stride}, {{y}}, {{y_stride}}, "
            f"{int(node.output.shape[-1])}, {{first}}, {{last}});"
        )
        return KernelCall(code, Split.ROWS, reads, {"y": y})

    def _swiglu(self, node: Node) -> KernelCall:
        x, width = self._input(node.inputs[0]), int(node.output.shape[-1])
        y = self._output(node.output, Split.ROWS)
        reads = {"a": x, "b": Operand(x.buffer, x.skip + 4 * width)}
        code = (
            "ew_elementwise(EW_SILU_MUL, {a}, {a_stride}, {b}, {b_stride}, {y}, {y_stride}, "
            f"{width}, {{first}}, {{last}});"
        )
        return KernelCall(code, Split.ROWS, reads, {"y": y})

    def _slice(self, node: Node) -> None:
        x = self._input(node.inputs[0])
        self.operands[node.output] = Operand(x.buffer, x.skip + 4 * node.attrs["start"])

    def _rope(self, node: Node) -> KernelCall:
        x, y = self._input(node.inputs[0]), self._output(node.output, Split.ROWS)
        table = self._table(node.inputs[1])
        head_dim = node.attrs["head_dim"]
        stride = self.layouts[table].panel_bytes // 4
        heads = int(node.output.shape[-1]) // head_dim
        code = (
            "ew_rope({x}, {x_stride}, {y}, {y_stride}, (const float *){table}, "
            f"{stride}, p->positions + s->base, {heads}, {head_dim}, "
            "{first}, {last});"
        )
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y}, {"table": table})

    def _gather_rows(self, node: Node) -> KernelCall:
        x, y = self._input(node.inputs[0]), self._output(node.output, Split.ROWS)
        code = (
            "ew_copy_rows({x}, {x_stride}, {y}, {y_stride}, p->batch.logit_rows, "
            f"{4 * int(node.output.shape[-1])}, {{first}}, {{last}});"
        )
        return KernelCall(code, Split.ROWS, {"x": x}, {"y": y})

    def _kv_write(self, node: Node, step: int) -> KernelCall:
        reads = {"k": self._input(node.inputs[0]), "v": self._input(node.inputs[1])}
        layer = _layer(node, step)
        code = f"ew_write_kv(e, p, s, {layer}, {{k}}, {{k_stride}}, {{v}}, {{v_stride}});"
        return KernelCall(code, Split.ROWS, reads, {})

    def _attention(self, node: Node, step: int) -> KernelCall:
        q, y = self._input(node.inputs[0]), self._output(node.output, Split.ITEMS)
        layer, scale = _layer(node, step), _float(node.attrs["scale"])
        code = (
            f"ew_attention(e, p, s, phase, {layer}, {scale}, {node.attrs['window']}, "
            "{q}, {q_stride}, {y}, {y_stride});"
        )
        return KernelCall(code, Split.ITEMS, {"q": q}, {"y": y}, starts_segment=True)


def _named(call: KernelCall, node: Node) -> KernelCall:
    call.comment = repr(node)
    sizes = [f"{w.sizes[0]}x{w.sizes[1]}" for w in call.weights.values() if len(w.sizes) == 2]
    call.name = " ".join([node.op, *(sizes if node.op.startswith("linear") else [])])
    return call


def _layer(node: Node, step: int) -> str:
    first = node.attrs["layer"]
    return f"{first} + iteration * {step}" if step else str(first)


def _round(size: int) -> int:
    return -(-size // 64) * 64


def _float(value: float) -> str:
    text = repr(float(value))
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def is_row_value(value: Value) -> bool:
    """Whether a value has a row for each wanted token rather than for each token."""
    return bool(value.shape) and value.shape[0] == ROWS
