"""An authority and what it signs, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, and a certificate of 127.0.0.1 with its key."""

    ca: str
    cert: str
    key: str


def signed(folder: Path, name: str) -> Certificates:
    """A new authority of that name with one certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    made = Certificates(*(str(folder / f"{name}-{part}.pem") for part in ("ca", "cert", "key")))
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-CA", made.ca, "-CAkey", f"{made.ca}.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    for command in (
        [*new, "-subj", f"/CN={name} authority", "-keyout", f"{made.ca}.key", "-out", made.ca],
        [
            *new,
            *authority,
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            made.key,
            "-out",
            made.cert,
        ],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return made
