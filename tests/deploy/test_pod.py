"""A pod's containers, started on this machine as the manifests say, with the reference backend in place of a device's."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripts.deployment.__main__ import MANIFESTS
from tests.deploy.cluster_tools import Document, documents, templates
from tests.serve.process import TGI, free_port, started
from tgi_core.model_files import DEMO

_ISOLATED = """
set -e
for folder in {writable}; do mount --bind "$folder" "$folder"; done
awk '{{print $2}}' /proc/mounts | while read -r place; do
    case " {writable} " in *" $place "*) continue ;; esac
    case "$place" in /proc | /proc/* | /dev | /dev/*) continue ;; esac
    mount -o remount,ro,bind "$place" 2>/dev/null || true
done
mount -t tmpfs tmpfs /dev/shm
! touch {outside} 2>/dev/null
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all {command}
"""
"""What a container runtime does: nothing can be written but the mounted volumes, and there are no capabilities."""


@pytest.fixture
def pod() -> Document:
    """The pod of deploy/kubernetes/cpu.yaml, with the file that its ConfigMap becomes."""
    found = documents((MANIFESTS / "cpu.yaml").read_text(encoding="utf-8"))
    (template,) = [template for document in found for template in templates(document)]
    (data,) = [document["data"] for document in found if document["kind"] == "ConfigMap"]
    return {"container": template["spec"]["containers"][0], "files": data, "volumes": template["spec"]["volumes"]}


@pytest.fixture
def isolated(tmp_path: Path) -> Iterator[Path]:
    """A folder for the volumes; the test is skipped where mounts cannot be made private."""
    probe = subprocess.run(["unshare", "--mount", "setpriv", "--no-new-privs", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no private mounts here: {probe.stderr.decode().strip()}")
    yield tmp_path


def test_it_runs_on_a_read_only_root(pod: Document, isolated: Path) -> None:
    """With the volumes of the manifest as the only folders that can be written, and no capabilities, the server loads, answers, becomes
    unready on SIGTERM and ends with status 0. Of its sockets nothing is left in /tmp."""
    folders = {mount["mountPath"]: isolated / mount["name"] for mount in pod["container"]["volumeMounts"]}
    assert set(folders) == {"/data", "/etc/tgi", "/tmp", "/dev/shm"}  # noqa: S108  the container's
    for folder in folders.values():
        folder.mkdir()
    for name, text in pod["files"].items():
        (folders["/etc/tgi"] / name).write_text(text.replace("Qwen/Qwen2.5-7B-Instruct", str(DEMO)))
    port = free_port()
    variables = {item["name"]: item["value"].replace("/data", str(folders["/data"])) for item in pod["container"]["env"]}
    variables |= {"PORT": str(port), "BACKEND": "reference", "HOSTNAME": "127.0.0.1", "TMPDIR": str(folders["/tmp"])}  # noqa: S108
    arguments = [item.replace("/etc/tgi", str(folders["/etc/tgi"])) for item in pod["container"]["args"]]
    assert arguments[0] == "tgi"
    command = shlex.join([*TGI, *arguments[1:], "--drain-delay", "0"])
    writable = " ".join(str(folders[name]) for name in ("/data", "/tmp"))  # noqa: S108
    script = _ISOLATED.format(writable=writable, outside=isolated / "outside", command=command)
    with started(["unshare", "--mount", "sh", "-c", script], variables, patience=60) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        for kind, probe in probes(pod["container"]):
            assert httpx.get(server.url + probe).status_code == 200, kind
        answer = httpx.post(f"{server.url}/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 3}})
        assert answer.json()["generated_text"]
        assert server.stop() == 0, "".join(server.lines)
    assert not (isolated / "outside").exists() and list(folders["/tmp"].iterdir()) == []  # noqa: S108


def probes(container: Document) -> Iterator[tuple[str, str]]:
    """The probes with their paths."""
    yield from ((kind, container[kind]["httpGet"]["path"]) for kind in ("startupProbe", "livenessProbe", "readinessProbe"))
