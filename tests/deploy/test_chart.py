"""The Helm chart, rendered and checked by helm itself."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.deployment.__main__ import CHART, MANIFESTS, chart
from scripts.deployment.manifests import rendered, template
from scripts.deployment.values import CHART_DEFAULTS
from tests.cli.test_effects import sample
from tests.deploy.cluster_tools import check_with_npm, documents, program
from tests.serve.process import run
from tgi_core.config import Scope, Settings, settings_in
from tgi_core.settings.spec import setting_of

SPECS = {spec.name: spec for spec in fields(Settings)}
SECRETS = {name for name, spec in SPECS.items() if setting_of(spec).secret}
OTHERS: dict[str, Any] = {
    "hostname": "127.0.0.1",
    "kv_cache_tokens": 4096,
    "max_total_tokens": 900,
    "max_input_tokens": 800,
    "total_payload_limit": 9_000_000,
    "memory_fraction": 0.5,
    "cuda_memory_fraction": 0.5,
    "request_timeout": 7.5,
    "cors_allow_origin": ["https://a.example", "https://b.example"],
    "high_priority_from": ["10.0.0.0/8"],
    "allowed_media_domains": ["images.example", "*.cdn.example"],
    "compile_cache": "/data/programs",
    "rope_factor": 2.0,
    "watermark_gamma": 0.25,
}
"""Values that are possible together."""


@pytest.fixture(scope="module")
def helm() -> str:
    """The program."""
    return program("helm")


def other(name: str) -> Any:
    """A value that is not the default, as it is written in a values file."""
    if name in OTHERS:
        return OTHERS[name]
    kind = SPECS[name].type
    value = "text" if "str" in str(kind) and not setting_of(SPECS[name]).choices else sample(name)
    return list(value) if isinstance(value, tuple) else value


def refused(helm: str, *values: str) -> str:
    """What helm says when it does not render."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        template(helm, CHART, values)
    return str(caught.value.stderr)


def test_generated_files_are_current() -> None:
    """The chart's values, schema, devices and defaults are those that scripts/deployment makes."""
    for path, text in chart().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: out of date; run python -m scripts.deployment"


def test_manifests_are_current(helm: str) -> None:
    """deploy/kubernetes has what the chart renders, and nothing else."""
    wanted = rendered(helm, CHART)
    assert sorted(wanted) == sorted(path.name for path in MANIFESTS.iterdir())
    for name, text in wanted.items():
        assert (MANIFESTS / name).read_text(encoding="utf-8") == text, f"{name}: out of date; run python -m scripts.deployment"


def test_values_cover_every_setting() -> None:
    """values.yaml has each setting once, in the table's order, with its default, and with its help as a comment above it."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    written = yaml.safe_load(text)["settings"]
    assert list(written) == list(SPECS)
    words = " ".join(text.replace("\n  #", "").split())
    for name, spec in SPECS.items():
        default = CHART_DEFAULTS.get(name, spec.default)
        assert written[name] == (list(default) if isinstance(default, tuple) else default), name
        assert " ".join(setting_of(spec).help.split()) in words, name


def test_lint(helm: str) -> None:
    """helm has nothing to say about the chart, not even a warning."""
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[WARNING]" not in done.stdout, done.stdout


def test_every_setting_reaches_the_server(helm: str, tmp_path: Path) -> None:
    """All settings at once, none with its default: `tgi config show` reads each from the rendered config file or variable as it was
    given."""
    given = {name: other(name) for name in SPECS if name not in SECRETS}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"settings": given}))
    command = [helm, "template", "tgi", str(CHART), "--values", str(values)]
    found = documents(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (deployment,) = [item for item in found if item["kind"] == "Deployment"]
    (configured,) = [item for item in found if item["kind"] == "ConfigMap"]
    config = tmp_path / "serve.json"
    config.write_text(configured["data"]["serve.json"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["tgi", "serve", "--config", "/etc/tgi/serve.json"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    done = run("config", "show", "--config", str(config), extra=variables)
    assert done.returncode == 0, done.stderr
    assert {name: value for name, value in tomllib.loads(done.stdout).items() if name in given} == given
    assert all(given[name] != SPECS[name].default for name in given)


def test_settings_of_ranks_and_router(helm: str, tmp_path: Path) -> None:
    """Over several nodes, ranks and router each get the settings that their command accepts, and each setting reaches one of them, but
    for those of `tgi serve` alone and those that are variables."""
    given = {name: other(name) for name in SPECS if name not in SECRETS}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"settings": given, "nodes": 2, "secretName": "tgi"}))
    command = [helm, "template", "tgi", str(CHART), "--values", str(values), "--show-only", "templates/configmap.yaml"]
    (found,) = documents(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shard, router = (json.loads(found["data"][f"{name}.json"]) for name in ("shard", "router"))
    variables = {"backend", "port", "huggingface_hub_cache", "compile_cache"}
    assert set(shard) == settings_in(Scope.SHARD) - variables
    assert set(router) == settings_in(Scope.ROUTER) - variables - SECRETS
    alone = {name for name, spec in SPECS.items() if setting_of(spec).scope is Scope.SERVE}
    assert set(given) - set(shard) - set(router) == alone | variables


def test_nothing_is_configured_that_nobody_chose(helm: str) -> None:
    """The config file has only what differs from the defaults, so that an operator sees what was chosen."""
    found = documents(template(helm, CHART, ("settings.max_batch_size=4",), ("configmap.yaml",)))
    assert json.loads(found[0]["data"]["serve.json"]) == {**CHART_DEFAULTS, "max_batch_size": 4}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("settings.max_batchsize=4",), "'max_batchsize' not allowed"),
        (("setings.max_batch_size=4",), "'setings' not allowed"),
        (("settings.max_batch_size=0",), "/settings/max_batch_size': minimum: got 0, want 1"),
        (("settings.dtype=float8",), "/settings/dtype"),
        (("settings.api_key=secret",), "/settings/api_key': got string, want null"),
        (("device=tpu",), "/device': value must be one of 'cpu', 'cuda'"),
        (("autoscaling.kind=vpa",), "autoscaling.kind vpa: must be none, hpa or keda"),
        (("serviceMonitor.enabled=true", "serviceMonitor.apiKey=true"), "serviceMonitor.apiKey: needs secretName"),
        (("nodes=2", "device=cuda"), "TGI_SHARD_TOKEN in the Secret that secretName names"),
        (("nodes=2", "device=neuron", "secretName=tgi"), "neuron drives all its devices from one process"),
    ],
)
def test_mistakes_are_refused(helm: str, values: tuple[str, ...], said: str) -> None:
    """A mistyped key, a value out of bounds, a secret in plain text, or a combination that cannot run is refused before anything is
    installed."""
    assert said in refused(helm, *values)


def test_values_override_the_device(helm: str) -> None:
    """What the device's description says can be changed: resource, memory, groups, tolerations, runtime class and settings."""
    values = (
        *("device=gaudi", "deviceCount=4", "resource=example.com/chip", "resources.limits.memory=1Ti", "runtimeClassName=other"),
        *(
            "settings.max_batch_size=64",
            "supplementalGroups={44,992}",
            "image.tag=v1",
            "environment.LOG_LEVEL=debug",
            "startupMinutes=5",
        ),
    )
    found: Mapping[str, Any] = {item["kind"]: item for item in documents(template(helm, CHART, values))}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"example.com/chip": 4, "memory": "1Ti"}
    assert pod["runtimeClassName"] == "other" and pod["securityContext"]["supplementalGroups"] == [44, 992]
    assert container["image"] == "tgi-core:v1" and {"name": "LOG_LEVEL", "value": "debug"} in container["env"]
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 300
    config = json.loads(found["ConfigMap"]["data"]["serve.json"])
    assert config == {**CHART_DEFAULTS, "max_batch_size": 64, "max_total_tokens": 4096, "num_shard": 4}


def test_prometheus_sends_the_key(helm: str) -> None:
    """With an API key, /metrics needs it, too."""
    values = ("serviceMonitor.enabled=true", "serviceMonitor.apiKey=true", "secretName=mine")
    found = documents(template(helm, CHART, values, ("servicemonitor.yaml",)))
    assert found[0]["spec"]["endpoints"][0]["authorization"] == {"credentials": {"name": "mine", "key": "API_KEY"}}
    assert check_with_npm(found) == ["ok"]
