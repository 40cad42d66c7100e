"""Messages as lines of text, from descriptors and back to a .proto file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

OURS = 1001
"""The first field number that is not TGI's."""

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("table.json").read_text())
"""TGI's interfaces: by package, its messages as lines `NUMBER [repeated|optional] TYPE NAME [in ONEOF]`, its enums, its methods."""

_TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in vars(FieldDescriptor)
    if name.startswith("TYPE_")
}


def lines(message: Descriptor) -> list[str]:
    """The fields of a message, by number."""
    return [_line(field) for field in sorted(message.fields, key=lambda field: field.number)]


def described(file: FileDescriptor) -> dict[str, Any]:
    """A file as in the table."""
    methods = file.services_by_name["TextGenerationService"].methods if file.services_by_name else ()
    return {
        "messages": {name: lines(message) for name, message in file.message_types_by_name.items()},
        "enums": {name: {value.name: value.number for value in enum.values} for name, enum in file.enum_types_by_name.items()},
        "methods": {method.name: [method.input_type.name, method.output_type.name] for method in methods},
    }


def source(package: str) -> str:
    """A .proto file written from the table alone."""
    table = TABLE[package]
    parts = ['syntax = "proto3";', f"package {package};"]
    for name, values in table["enums"].items():
        parts.append(f"enum {name} {{ " + " ".join(f"{value} = {number};" for value, number in values.items()) + " }")
    for name, fields in table["messages"].items():
        oneofs: dict[str, list[str]] = {}
        body: list[str] = []
        for field in fields:
            number, *rest = field.split()
            where = oneofs.setdefault(rest.pop(), []) if rest[-2] == "in" else body
            where.append(" ".join(item for item in rest if item != "in") + f" = {number};")
        body += [f"oneof {oneof} {{ " + " ".join(inner) + " }" for oneof, inner in oneofs.items()]
        parts.append(f"message {name} {{ " + " ".join(body) + " }")
    return "\n".join(parts) + "\n"


def _line(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    type_name = _TYPES[field.type] if kind is None else kind.name
    oneof = field.containing_oneof
    optional = oneof is not None and oneof.name.startswith("_")
    label = "repeated " if field.is_repeated else "optional " if optional else ""
    inside = f" in {oneof.name}" if oneof is not None and not optional else ""
    return f"{field.number} {label}{type_name} {field.name}{inside}"
