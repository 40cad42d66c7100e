"""The plain manifests of deploy/kubernetes, against the schemas of Kubernetes and of what is installed beside it, and the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from scripts.deployment.devices import DEVICES
from tests.deploy.cluster_tools import NPM_KINDS, Document, check, check_with_npm, documents, templates
from tests.deploy.dockerfile import environment, read
from tgi_core.config import Settings
from tgi_core.telemetry.catalog import METRICS

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: documents(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "deploy" / "kubernetes").iterdir())}
BACKENDS = [device.backend for device in DEVICES]
WHOLE = [name for name in FILES if not name.startswith("option-")]
RESOURCES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu", "xpu": "gpu.intel.com/i915", "gaudi": "habana.ai/gaudi"}


def of_kind(name: str, kind: str) -> Document:
    """The only object of a kind in a file."""
    (found,) = [document for document in FILES[name] if document["kind"] == kind]
    return found


def every_pod() -> Iterator[tuple[str, Document]]:
    """(file, pod template) of all files."""
    for name, found in FILES.items():
        for document in found:
            yield from ((name, template) for template in templates(document))


def containers(template: Document) -> list[Document]:
    """All containers of a pod."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def servers(template: Document) -> list[Document]:
    """The containers of a pod that speak HTTP."""
    return [container for container in containers(template) if "ports" in container]


def test_kubernetes_accepts_them() -> None:
    """Every object is valid for the oldest and the newest Kubernetes that is supported, without unknown fields."""
    checked = 0
    for document in unlike(document for found in FILES.values() for document in found if document["kind"] not in NPM_KINDS):
        check(document)
        checked += 1
    assert checked > 15


def unlike(found: Iterator[Document]) -> list[Document]:
    """Each object once."""
    return list({repr(document): document for document in found}.values())


def test_other_projects_accept_them() -> None:
    """Resources of KEDA, of the Prometheus operator and of the Gateway API are valid for validators made from their own definitions."""
    found = [document for each in FILES.values() for document in each if document["kind"] in NPM_KINDS]
    assert sorted(document["kind"] for document in found) == sorted(NPM_KINDS)
    assert check_with_npm(found) == ["ok"] * len(found)
    broken = [{**document, "spec": {**document["spec"], **wrong}} for document, wrong in zip(found, mistakes(found), strict=True)]
    assert "ok" not in check_with_npm(broken)


def mistakes(found: list[Document]) -> Iterator[dict[str, Any]]:
    """A wrong value for each, so that the validators are known to look."""
    wrong = {
        "ScaledObject": {"maxReplicaCount": "many"},
        "ServiceMonitor": {"endpoints": 1},
        "HTTPRoute": {"rules": [{"timeouts": {"request": "x"}}]},
    }
    return (wrong[document["kind"]] for document in found)


@pytest.mark.parametrize(
    ("name", "kind"), [("option-gateway", "InferencePool"), ("cuda-nodes", "LeaderWorkerSet"), ("cpu", "Deployment")]
)
def test_a_mistake_is_found(name: str, kind: str) -> None:
    """The schemas refuse an unknown field."""
    document = of_kind(name, kind)
    with pytest.raises(ValidationError):
        check({**document, "spec": {**document["spec"], "replica": 2}})


def test_every_device_has_a_file() -> None:
    """One file for each device, and one for a model over several nodes where ranks are processes of their own."""
    assert sorted(WHOLE) == sorted([*BACKENDS, *(f"{name}-nodes" for name in RESOURCES)])
    for name in BACKENDS:
        kinds = {document["kind"] for document in FILES[name]}
        assert kinds == {"ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Service"}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_device(name: str) -> None:
    """A pod asks for its device as a limit, tolerates the taint of such nodes, and runs the image and the backend of this name."""
    pod = of_kind(name, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    resource = {**RESOURCES, "neuron": "aws.amazon.com/neuron"}.get(name)
    assert {key: value for key, value in limits.items() if key != "memory"} == ({resource: 1} if resource else {})
    assert [item["key"] for item in pod.get("tolerations", [])] == ([resource] if resource else [])
    assert container["image"] == f"tgi-core:{name}" and (ROOT / f"Dockerfile.{name}").exists()
    assert {"name": "BACKEND", "value": name} in container["env"]


@pytest.mark.parametrize("name", BACKENDS)
def test_variables_of_the_image_are_overridden(name: str) -> None:
    """A variable that the image sets wins over the config file, so the pod sets each anew, or the image's value is no setting."""
    image = environment(read(ROOT / f"Dockerfile.{name}"))
    settings = {field.upper() for field in Settings.__dataclass_fields__}
    (container,) = of_kind(name, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert settings & set(image) <= {item["name"] for item in container["env"]}


def test_pods_have_no_privileges() -> None:
    """Not root, a read-only root, no capability, the runtime's seccomp profile, and no token of a service account: what the
    pod security standard `restricted` asks for, and more."""
    for name, template in every_pod():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] == security["fsGroup"] == 10001, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        for container in containers(template):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_probes() -> None:
    """Startup and readiness at /readyz, liveness at /livez, on the port that the server listens on; as long as compiling takes."""
    for name, template in every_pod():
        for container in servers(template):
            variables = {item["name"]: item["value"] for item in container["env"]}
            assert [port["containerPort"] for port in container["ports"]] == [int(variables["PORT"])]
            paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
            assert {kind: get["path"] for kind, get in paths.items()} == {
                "startup": "/readyz",
                "liveness": "/livez",
                "readiness": "/readyz",
            }
            assert {get["port"] for get in paths.values()} == {"http"}
            startup = container["startupProbe"]
            compiles = name.startswith(("gaudi", "neuron"))
            assert startup["periodSeconds"] * startup["failureThreshold"] >= (3600 if compiles else 1800)


def test_draining_fits() -> None:
    """Kubernetes waits longer than the server takes to drain: the delay, the time that requests have, and the end of its processes.
    The delay covers the time until a failed readiness probe has taken the pod out of the Service."""
    drain = Settings().drain_delay + Settings().graceful_termination_timeout
    for _, template in every_pod():
        assert template["spec"]["terminationGracePeriodSeconds"] >= drain + 10
        for container in servers(template):
            probe = container["readinessProbe"]
            assert probe["periodSeconds"] * probe["failureThreshold"] < Settings().drain_delay


@pytest.mark.parametrize("name", WHOLE)
def test_references(name: str) -> None:
    """Selectors match the pods, ports have their names, and volumes, claims and config files exist."""
    found = {document["kind"]: document for document in FILES[name]}
    pods = [template for document in FILES[name] for template in templates(document)]
    labels = pods[0]["metadata"]["labels"]
    selectors = (
        found["Service"]["spec"]["selector"],
        *(found[kind]["spec"][key]["matchLabels"] for kind, key in SELECTORS.items()),
    )
    for selector in selectors:
        own = {key: value for key, value in selector.items() if not key.startswith("leaderworkerset")}
        assert own == {key: labels[key] for key in own} != {}
    assert servers(pods[0])[0]["ports"][0]["name"] == found["Service"]["spec"]["ports"][0]["targetPort"] == "http"
    assert found["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [{"port": "http"}]
    for template in pods:
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
        assert volumes["settings"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
        for container in containers(template):
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
            (config,) = re.findall(r"/etc/tgi/([\w.]+)", " ".join(container["args"]))
            assert config in found["ConfigMap"]["data"]


SELECTORS = {"PodDisruptionBudget": "selector", "NetworkPolicy": "podSelector"}


@pytest.mark.parametrize("name", [f"{name}-nodes" for name in RESOURCES])
def test_ranks(name: str) -> None:
    """The ranks of a leader start before its router and end after it; a worker's ranks stay until the router has drained. All of them get
    the devices, and the variables by which they find each other are LeaderWorkerSet's."""
    leader, worker = templates(of_kind(name, "LeaderWorkerSet"))
    (ranks,), (router,) = leader["spec"]["initContainers"], leader["spec"]["containers"]
    (remote,) = worker["spec"]["containers"]
    assert ranks["restartPolicy"] == "Always" and "startupProbe" in ranks and router["args"][:2] == ["tgi", "router"]
    assert remote["args"] == ranks["args"] and remote["resources"] == ranks["resources"]
    assert ranks["resources"]["limits"][RESOURCES[name.removesuffix("-nodes")]] == 8
    assert set(re.findall(r"\$\((\w+)\)", " ".join(ranks["args"]))) == {
        "LWS_GROUP_SIZE",
        "LWS_WORKER_INDEX",
        "LWS_LEADER_ADDRESS",
    }
    drain = Settings().drain_delay + Settings().graceful_termination_timeout
    assert drain <= remote["lifecycle"]["preStop"]["sleep"]["seconds"] < worker["spec"]["terminationGracePeriodSeconds"]
    assert ranks["envFrom"] == router["envFrom"] == remote["envFrom"] != []  # TGI_SHARD_TOKEN


def test_options_fit_the_files() -> None:
    """What is applied beside a device's file names its objects, and metrics that the server has."""
    deployment = of_kind("cpu", "Deployment")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    scaler, scaled = of_kind("option-hpa", "HorizontalPodAutoscaler"), of_kind("option-keda", "ScaledObject")
    assert scaler["spec"]["scaleTargetRef"] == scaled["spec"]["scaleTargetRef"] == target
    names = {metric.name for metric in METRICS}
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    asked = [
        scaler["spec"]["metrics"][0]["pods"]["metric"]["name"],
        *re.findall(r"\b(tgi_\w+?)(?:_bucket)?\{", " ".join(queries)),
    ]
    assert asked == ["tgi_queue_size", "tgi_queue_size", "tgi_request_queue_duration"] and set(asked) <= names
    pool, route = of_kind("option-gateway", "InferencePool"), of_kind("option-gateway", "HTTPRoute")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    port = servers(deployment["spec"]["template"])[0]["ports"][0]["containerPort"]
    assert pool["spec"]["selector"]["matchLabels"] == labels and pool["spec"]["targetPorts"] == [{"number": port}]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
    monitor = of_kind("option-monitoring", "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == of_kind("cpu", "Service")["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] == of_kind("cpu", "Service")["spec"]["ports"][0]["name"]
