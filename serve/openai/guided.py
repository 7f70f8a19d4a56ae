"""From a request's fields to the one constraint on its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ...executor.sampling import Guided
from ...runtime.errors import RequestError


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`json_schema` of a response format."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format`: the form of the answer; json, regex, grammar and ebnf are extensions."""

    type: Literal["text", "json_object", "json_schema", "json", "regex", "grammar", "ebnf"]
    json_schema: JsonSchemaFormat | None = None
    # Beside `json_object`, as llama.cpp takes it, or `json`, as TensorRT-LLM does.
    schema: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """`structured_outputs`, vLLM's newer spelling of the guided fields, and `guided_decoding`."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GuidedFields(msgspec.Struct, kw_only=True):
    """The fields of a request that constrain its answer; at most one may be given."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_decoding: StructuredOutputs | None = None  # TensorRT-LLM's name of the same

    def guided_field(self) -> str:
        """Return the field to blame for a constraint that cannot be followed."""
        fields = GuidedFields.__struct_fields__
        return next((name for name in fields if getattr(self, name) is not None), "tools")

    def guided(self) -> Guided | None:
        """Return the constraint; raises RequestError, also for two of them."""
        found: dict[str, Guided | None] = {}
        if self.response_format is not None:
            found["response_format"] = from_format(self.response_format, "response_format")
        for kind in ("json", "regex", "grammar", "choice"):
            found[f"guided_{kind}"] = _from_value(kind, getattr(self, f"guided_{kind}"))
        for field in ("structured_outputs", "guided_decoding"):
            outputs: StructuredOutputs | None = getattr(self, field)
            if outputs is None:
                continue
            for kind in ("json", "regex", "grammar", "choice"):
                found[f"{field}.{kind}"] = _from_value(kind, getattr(outputs, kind))
            if outputs.json_object:
                found[f"{field}.json_object"] = Guided("json_object")
        return only_one(found)


def only_one(found: Mapping[str, Guided | None]) -> Guided | None:
    """Return the one constraint there is, if any; raises RequestError for two."""
    given = {name: guided for name, guided in found.items() if guided is not None}
    if len(given) > 1:
        raise RequestError(
            f"{' and '.join(given)} each constrain the answer; give one of them",
            list(given)[-1].split(".")[0],
        )
    return next(iter(given.values()), None)


def from_format(form: ResponseFormat, field: str) -> Guided | None:
    """Return the constraint of a response format; `field` is its name in the request."""
    match form.type:
        case "text":
            return None
        case "json_object":
            return Guided("json_object") if form.schema is None else _schema(form.schema)
        case "json_schema":
            schema = None if form.json_schema is None else form.json_schema.schema
            if schema is None:
                raise RequestError(
                    f"{field} of type 'json_schema' needs `json_schema` with a `schema`", field
                )
            return _schema(schema)
        case "json":
            if form.schema is None:
                raise RequestError(f"{field} of type 'json' needs a `schema`", field)
            return _schema(form.schema)
        case "regex":
            return Guided("regex", _needed(form.regex, form.type, field))
        case "grammar" | "ebnf":
            text = form.grammar if form.grammar is not None else form.ebnf
            return Guided("grammar", _needed(text, form.type, field))


def _needed(text: str | None, kind: str, field: str) -> str:
    if not text:
        raise RequestError(f"{field} of type {kind!r} needs `{kind}` with a text", field)
    return text


def _from_value(kind: str, value: Any) -> Guided | None:
    if value is None:
        return None
    if kind == "json":
        return Guided("json_schema", value) if isinstance(value, str) else _schema(value)
    if kind == "choice":
        if not value:
            raise RequestError("guided_choice is empty; give at least one text", "guided_choice")
        return Guided("choice", msgspec.json.encode(value).decode())
    return Guided("regex" if kind == "regex" else "grammar", value)


def _schema(schema: dict[str, Any] | bool) -> Guided:
    return Guided("json_schema", msgspec.json.encode(schema).decode())
