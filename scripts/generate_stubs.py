"""Regenerates the protobuf stubs next to each .proto file: `python scripts/generate_stubs.py`.

A stub works with its compiler's protobuf release and the next major one, so use the oldest supported compiler: grpcio-tools 1.73,
for protobuf 6.31 and later. It need not be installed in the environment; a separate directory is enough:

    pip install --target /tmp/tools "grpcio-tools==1.73.1" && PYTHONPATH=/tmp/tools python scripts/generate_stubs.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = tuple(f"tgi_core/proto/{name}.proto" for name in ("contract", "generate/v2/generate", "generate/v3/generate"))
OLDEST_PROTOBUF = 6


def generate() -> None:
    """Compile all sources. Exits with a message if the compiler is too new."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", *SOURCES]
    subprocess.run(command, cwd=ROOT, check=True)
    for source in SOURCES:
        stub = (ROOT / source.replace(".proto", "_pb2.py")).read_text(encoding="utf-8")
        version = re.search(r"Protobuf Python Version: (\d+)", stub)
        if version is None or int(version.group(1)) > OLDEST_PROTOBUF:
            sys.exit(
                f"{source}: this grpcio-tools makes stubs for protobuf newer than {OLDEST_PROTOBUF}; use 1.73, as this script's text says"
            )


if __name__ == "__main__":
    generate()
