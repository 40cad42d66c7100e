"""docker compose for one box: the files, against compose's schema, the images, the server's settings and each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tgi_core.config import Settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted(DEPLOY.glob("compose*.yaml"))
OVERLAYS = {path.suffixes[0].removeprefix(".") for path in FILES} - {"yaml"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the main file."""
    found: dict[str, Any] = read("compose.yaml")["services"]
    return found


def read(name: str) -> Any:
    """A file of deploy."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def test_schema() -> None:
    """The files are valid by compose's own specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_mounted_exists(services: dict[str, Any]) -> None:
    """Every folder and file that a service mounts is in the repository, or is a named volume."""
    volumes = read("compose.yaml")["volumes"]
    for service in services.values():
        for source in (mount.split(":")[0] for mount in service["volumes"]):
            assert (DEPLOY / source).exists() if source.startswith(".") else source in volumes, source


def test_nothing_is_reachable_from_elsewhere(services: dict[str, Any]) -> None:
    """Ports are published to this machine only, roots are read-only, and containers have no capabilities."""
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_server(services: dict[str, Any]) -> None:
    """Its variables are settings or known to its libraries, its port is the one that is published and scraped, and compose waits while
    it drains."""
    server = services["tgi"]
    known = {name.upper() for name in Settings.__dataclass_fields__} | {"HF_TOKEN", "XDG_CACHE_HOME"}
    assert set(server["environment"]) <= known
    port = server["environment"]["PORT"]
    assert server["ports"] == [f"127.0.0.1:8080:{port}"]
    (job,) = read("prometheus/prometheus.yaml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"tgi:{port}"]}]
    grace = int(re.fullmatch(r"(\d+)s", server["stop_grace_period"])[1])  # type: ignore[index]
    assert grace >= Settings().drain_delay + Settings().graceful_termination_timeout + 10


@pytest.mark.parametrize("device", sorted(OVERLAYS))
def test_a_device(device: str) -> None:
    """A device's file changes the image and its Dockerfile, which exists."""
    changed = read(f"compose.{device}.yaml")["services"]["tgi"]
    assert changed["image"] == f"tgi-core:{device}"
    assert (DEPLOY.parent / changed["build"]["dockerfile"]).name == f"Dockerfile.{device}"
    assert (DEPLOY.parent / changed["build"]["dockerfile"]).exists()


def test_grafana_finds_its_dashboard(services: dict[str, Any]) -> None:
    """The provisioned folder is where the dashboard is mounted, the data source is of the kind that it asks for, at Prometheus' service."""
    (provider,) = read("grafana/provisioning/dashboards/tgi-core.yaml")["providers"]
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    mounts = [mount.split(":")[:2] for mount in services["grafana"]["volumes"]]
    (inside,) = [Path(target) for path, target in mounts if path.endswith("tgi-core.json")]
    assert str(inside.parent) == provider["options"]["path"]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == str(inside)
    variables = json.loads((DEPLOY / "grafana" / "tgi-core.json").read_text())["templating"]["list"]
    assert source["type"] in [item["query"] for item in variables if item["type"] == "datasource"]
    assert source["url"] == "http://prometheus:9090" and "9090" in services["prometheus"]["ports"][0]
