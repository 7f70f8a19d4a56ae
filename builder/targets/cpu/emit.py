"""Emission: a program of kernel calls printed as one C file."""

from __future__ import annotations

import textwrap

from .calls import KernelCall, Operand, Place, Split
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
    parts += [f"EW_DEFINE_GEMM({name})" for name in sorted(program.gemm_formats)]
    parts += [f"EW_DEFINE_HEAD({program.head_format})", ""]
    parts += [_weight_table(segment) for segment in program.segments if segment.weights]
    parts += [_function(segment, program) for segment in program.segments]
    parts += [_phases(program), _suffix(program)]
    return "\n".join(parts)


def _defines(program: Program) -> str:
    facts = program.facts
    values = {
        "EW_GROUP": facts.group,
        "EW_HEADS": facts.num_heads,
        "EW_KV_HEADS": facts.num_kv_heads,
        "EW_HEAD_DIM": facts.head_dim,
        "EW_LAYERS": facts.num_layers,
        "EW_VOCAB": facts.vocab_size,
        "EW_KV": KV_KINDS[facts.kv_dtype],
        "EW_BLOCK_BYTES": "((size_t)EW_LAYERS * EW_KV_HEADS * EW_KV_HEAD_BYTES)",
        "EW_TILE": facts.tile,
        "EW_PHASES": len(program.phases),
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
        "    {" + ", ".join(str(packed.offset) for packed in row) + "},"
        for row in segment.weights
    ]
    width = len(segment.weights[0])
    return (
        f"static const uint64_t weights_{segment.name}[{len(rows)}][{width}] = {{\n"
        + "\n".join(rows)
        + "\n};\n"
    )


def _function(segment: Segment, program: Program) -> str:
    lines: list[str] = []
    for call in segment.calls:
        if call.barrier:
            lines.append("ew_sync(e, s);" if call.barrier == "all" else "ew_sync_rows(e, s);")
        lines.append(f"/* {call.comment} */")
        body = _render(call, segment)
        lines.append(f"{{ {body} }}" if call.split is Split.COLUMNS else body)
        lines.append(f"ew_lap(e, s->thread, {call.slot});")
    unused = [name for name in ("iteration", "phase") if not any(name in line for line in lines)]
    lines += [f"(void){name};" for name in unused]
    return (
        f"static void {segment.name}(ew_engine *e, const ew_step *p, const ew_span *s, "
        "int iteration, int phase) {\n" + textwrap.indent("\n".join(lines), "    ") + "\n}\n"
    )


def _render(call: KernelCall, segment: Segment) -> str:
    names: dict[str, str] = {}
    for name, operand in (*call.reads.items(), *call.writes.items()):
        names[name] = _address(operand)
        names[f"{name}_stride"] = _stride(operand)
    for name, weight in call.weights.items():
        names[name] = f"(e->weights + weights_{segment.name}[iteration][{segment.slot(weight)}])"
    into_stream = any(o.buffer.place is Place.STREAM for o in call.writes.values())
    names["first"] = "s->split_first" if into_stream else "s->first"
    names["last"] = "s->split_last" if into_stream else "s->last"
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
    return "e->logits_stride" if operand.buffer.place is Place.LOGITS else str(operand.buffer.row_bytes)


def _phases(program: Program) -> str:
    calls: list[str] = []
    starts = [0]
    for phase in program.phases:
        calls += [f"    {{{segment.name}, {iteration}}}," for segment, iteration in phase]
        starts.append(len(calls))
    return (
        "typedef struct {\n"
        "    void (*run)(ew_engine *, const ew_step *, const ew_span *, int, int);\n"
        "    int iteration;\n} ew_phase_call;\n"
        f"static const ew_phase_call phase_calls[{len(calls)}] = {{\n" + "\n".join(calls) + "\n};\n"
        f"static const int phase_starts[{len(starts)}] = {{{', '.join(map(str, starts))}}};\n\n"
        "static void ew_model_phase(ew_engine *e, const ew_step *p, const ew_span *s, int phase) {\n"
        "    for (int i = phase_starts[phase]; i < phase_starts[phase + 1]; i++)\n"
        "        phase_calls[i].run(e, p, s, phase_calls[i].iteration, phase);\n}\n"
    )


def _suffix(program: Program) -> str:
    return (
        "static void ew_model_suffix(ew_engine *e, const ew_step *p, const ew_span *s) {\n"
        f"    {program.suffix.name}(e, p, s, 0, 0);\n}}\n"
    )
