"""The wire is TGI's, and what is ours on it changes only on purpose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.grpc.described import OURS, TABLE, described, source
from tgi_core.proto import contract_pb2
from tgi_core.proto.generate.v2 import generate_pb2 as v2
from tgi_core.proto.generate.v3 import generate_pb2 as v3

ROOT = Path(__file__).parents[2]
EXTRAS = Path(__file__).with_name("extras.json")
MESSAGES = Path(__file__).with_name("messages")
FILES: dict[str, FileDescriptor] = {"generate.v2": v2.DESCRIPTOR, "generate.v3": v3.DESCRIPTOR}


def _below(values: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in values.items() if number < OURS}


def _beyond(values: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in values.items() if number >= OURS}


def split(package: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A package as described: what is TGI's, and what is ours."""
    whole = described(FILES[package])
    known = TABLE[package]
    theirs = {
        "messages": {
            name: [line for line in lines if int(line.split()[0]) < OURS]
            for name, lines in whole["messages"].items()
            if name in known["messages"]
        },
        "enums": {name: _below(values) for name, values in whole["enums"].items()},
        "methods": {name: kinds for name, kinds in whole["methods"].items() if name in known["methods"]},
    }
    ours = {
        "enums": {name: extra for name, values in whole["enums"].items() if (extra := _beyond(values))},
        "messages": {
            name: extra
            for name, lines in whole["messages"].items()
            if (extra := [line for line in lines if line not in theirs["messages"].get(name, ())])
        },
        "methods": {name: kinds for name, kinds in whole["methods"].items() if name not in known["methods"]},
    }
    return theirs, ours


@pytest.mark.parametrize("package", FILES)
def test_every_message_is_tgis(package: str) -> None:
    """Each message, number, name, type and label, each enum value and each method below our numbers is the table's."""
    theirs, _ = split(package)
    assert theirs["enums"] == TABLE[package]["enums"]
    assert theirs["methods"] == TABLE[package]["methods"]
    assert theirs["messages"] == TABLE[package]["messages"]


def extras() -> dict[str, Any]:
    """Everything of ours on the wire."""
    return {"generate.v3": split("generate.v3")[1], "tgi.contract": described(contract_pb2.DESCRIPTOR)["messages"]}


def test_our_own_part_is_as_it_was_announced() -> None:
    """Our enum values, fields, messages and methods are those of a committed list: run this file to write it anew. v2 has none of ours."""
    assert split("generate.v2")[1] == {"enums": {}, "messages": {}, "methods": {}}
    assert extras() == json.loads(EXTRAS.read_text())


def protoc(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run the compiler."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    return subprocess.run(command, input=stdin, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def test_the_stubs_are_fresh(tmp_path: Path) -> None:
    """The committed stubs hold what the .proto files say."""
    out = tmp_path / "all.pb"
    stubs = (contract_pb2.DESCRIPTOR, v2.DESCRIPTOR, v3.DESCRIPTOR)
    protoc("-I.", f"--descriptor_set_out={out}", *(stub.name for stub in stubs))
    compiled = {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}
    for field in (field for file in compiled.values() for message in file.message_type for field in message.field):
        field.ClearField("json_name")  # stubs leave it out
    for stub in stubs:
        held = type(compiled[stub.name]).FromString(stub.serialized_pb)
        assert held == compiled[stub.name], f"{stub.name}: run scripts/generate_stubs.py"


@pytest.mark.parametrize("path", sorted(MESSAGES.glob("*.txtpb")), ids=lambda path: path.stem)
def test_bytes_made_elsewhere_come_back_unchanged(path: Path, tmp_path: Path) -> None:
    """A message encoded by protoc, from text and a .proto file made from the table alone, decodes and encodes to the same bytes;
    nothing of it is unknown to us."""
    package, name = path.stem.split("-")[:2]
    (tmp_path / "table.proto").write_text(source(f"generate.{package}"))
    encoded = protoc(f"-I{tmp_path}", f"--encode=generate.{package}.{name}", "table.proto", stdin=path.read_bytes())
    message = getattr({"v2": v2, "v3": v3}[package], name).FromString(encoded)
    assert encoded and message.SerializeToString(deterministic=True) == encoded
    message.DiscardUnknownFields()
    assert message.SerializeToString(deterministic=True) == encoded


if __name__ == "__main__":
    EXTRAS.write_text(json.dumps(extras(), indent=1) + "\n")
