"""Emission: a program of kernel calls printed as one C file."""

from __future__ import annotations

import re
import textwrap

from .calls import KernelCall, Operand, Place, Split
from .lower import KERNELS, kernel_name
from .pack import PackedLayout
from .program import Program, Segment

KV_KINDS = {"f32": 0, "bf16": 1, "int8": 2}  # EW_KV_* in plugins/cpu/attention.h


def emit(program: Program) -> str:
    """Return the C source of an engine."""
    facts = program.facts
    parts = [
        f"/* {facts.title}: emitted by enginewright; every size is a constant. */",
        _defines(program),
        _profile_names(program),
        '#include "main.h"',
        "",
    ]
    parts += [f"EW_DEFINE_QUANTIZE({g}_{r}, {g}, {r})" for g, r in sorted(program.quantizers)]
    parts += [f"EW_DEFINE_GEMM({_kernel(program.products[n])})" for n in sorted(program.products)]
    parts += [
        f"EW_DEFINE_GEMM_QUANTIZE({_kernel(layout)}, {group}, {rotation})"
        for _, (layout, group, rotation) in sorted(program.rounding.items())
    ]
    if program.head is not None:
        parts += [f"EW_DEFINE_HEAD({_kernel(program.head)})", ""]
    parts += [_weight_table(segment) for segment in program.segments if segment.weights]
    parts += [_functions(segment) for segment in program.segments]
    parts += [_stage_table(program)]
    return "\n".join(parts)


def _kernel(layout: PackedLayout) -> str:
    return f"{kernel_name(layout)}, {KERNELS[layout.format]}, {layout.group}"


def _defines(program: Program) -> str:
    facts = program.facts
    values = {
        "EW_HEADS": facts.num_heads,
        "EW_KV_HEADS": facts.num_kv_heads,
        "EW_HEAD_DIM": facts.head_dim,
        "EW_LAYERS": facts.num_layers,
        "EW_VOCAB": facts.row_size,
        "EW_KV": KV_KINDS[facts.kv_dtype],
        "EW_BLOCK_BYTES": "((size_t)EW_LAYERS * EW_KV_HEADS * EW_KV_HEAD_BYTES)",
        "EW_PRODUCTS": len(program.product_calls),
        "EW_PHASES": len(program.phases),
        "EW_STAGES": sum(len(_stages(s)) for phase in _all_phases(program) for s, _ in phase),
        "EW_STREAM_BYTES": program.stream_bytes,
        "EW_LOCAL_BYTES": program.local_bytes,
        "EW_PROFILE_SLOTS": 2 + sum(len(segment.calls) for segment in program.segments),
    }
    return "\n".join(f"#define {name} {value}" for name, value in values.items())


def _profile_names(program: Program) -> str:
    """Number the calls, and name the slots that a profile counts them in."""
    names = ["wait"]
    for segment in program.segments:
        for call in segment.calls:
            call.slot = len(names)
            names.append(call.name)
    rows = "".join(f'    "{name}",\n' for name in (*names, "sample"))
    return f"static const char *const ew_profile_names[] = {{\n{rows}}};"


def _weight_table(segment: Segment) -> str:
    """The offsets of a segment's weights, a row an iteration."""
    rows = [
        "    {" + ", ".join(str(packed.offset) for packed in row) + "}," for row in segment.weights
    ]
    width = len(segment.weights[0])
    return (
        f"static const uint64_t weights_{segment.name}[{len(rows)}][{width}] = {{\n"
        + "\n".join(rows)
        + "\n};\n"
    )


def _stages(segment: Segment) -> list[list[KernelCall]]:
    """Cut a segment's calls where parts must wait for each other."""
    stages: list[list[KernelCall]] = []
    for call in segment.calls:
        if call.barrier or not stages:
            stages.append([])
        stages[-1].append(call)
    return stages


def _functions(segment: Segment) -> str:
    """One function a stage."""
    functions: list[str] = []
    for number, calls in enumerate(_stages(segment)):
        lines: list[str] = []
        for call in calls:
            lines.append(f"/* {call.comment} */")
            body = _render(call, segment)
            lines.append(f"{{ {body} }}" if call.split is Split.COLUMNS else body)
            lines.append(f"ew_lap(e, s->thread, {call.slot});")
        text = "\n".join(lines)
        unused = [
            name for name in ("p", "iteration", "phase") if not re.search(rf"\b{name}\b", text)
        ]
        lines += [f"(void){name};" for name in unused]
        functions.append(
            f"static void {segment.name}_{number}(ew_engine *e, const ew_step *p, "
            "const ew_span *s, int iteration, int phase) {\n"
            + textwrap.indent("\n".join(lines), "    ")
            + "\n}\n"
        )
    return "\n".join(functions)


def _render(call: KernelCall, segment: Segment) -> str:
    names: dict[str, str] = {}
    for name, operand in (*call.reads.items(), *call.writes.items()):
        names[name] = _address(operand)
        names[f"{name}_stride"] = _stride(operand)
    for name, weight in call.weights.items():
        names[name] = f"(s->weights + weights_{segment.name}[iteration][{segment.slot(weight)}])"
    # What all threads share is never written twice.
    shared = any(o.buffer.place in (Place.STREAM, Place.LOGITS) for o in call.writes.values())
    names["first"] = "s->split_first" if shared else "s->first"
    names["last"] = "s->split_last" if shared else "s->last"
    return call.code.format(**names)


def _address(operand: Operand) -> str:
    buffer, skip = operand.buffer, f" + {operand.skip}" if operand.skip else ""
    if buffer.place is Place.LOGITS:
        return "e->logits"
    if buffer.place is Place.STREAM:
        return (
            f"(e->stream + (size_t){buffer.offset} * e->options.max_num_tokens + "
            f"(size_t)s->base * {buffer.row_bytes}{skip})"
        )
    base = "mine" if buffer.place is Place.MINE else "ours"
    return f"(s->{base} + {buffer.offset} * s->{base}_rows{skip})"


def _stride(operand: Operand) -> str:
    return (
        "e->logits_stride"
        if operand.buffer.place is Place.LOGITS
        else str(operand.buffer.row_bytes)
    )


def _all_phases(program: Program) -> list[list[tuple[Segment, int]]]:
    return [*program.phases, [(program.suffix, 0)]]


def _stage_table(program: Program) -> str:
    """Every stage in order, phase by phase; the wanted rows' stages come last."""
    rows: list[str] = []
    starts = [0]
    for phase in _all_phases(program):
        for segment, iteration in phase:
            for number, calls in enumerate(_stages(segment)):
                attention = int(calls[0].split is Split.ITEMS)
                # A segment's first stage may hold no barrier, but what ran before it was another's.
                joins = int(calls[0].barrier == "rows")
                # A stage of one such call falls away with it.
                groups = calls[0].groups if len(calls) == 1 else 0
                facts = f"{iteration}, {attention}, {joins}, {groups}"
                rows.append(f"    {{{segment.name}_{number}, {facts}}},")
        starts.append(len(rows))
    return (
        "static const ew_stage ew_stages[EW_STAGES] = {\n" + "\n".join(rows) + "\n};\n"
        "static const int ew_phase_starts[EW_PHASES + 2] = {" + ", ".join(map(str, starts)) + "};\n"
    )
