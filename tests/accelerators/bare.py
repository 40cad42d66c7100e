"""A machine that has Python, torch and its friends, and neither this repository's packages nor those that serve HTTP."""

from __future__ import annotations

import os
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HTTP = (
    "fastapi",
    "fastapi_offline",
    "httptools",
    "jsonschema_rs",
    "llguidance",
    "prometheus_client",
    "pydantic",
    "pydantic_core",
)
HTTP += ("starlette", "uvicorn")
SOURCES = {
    "tgi-core": (ROOT, ("tgi_core", "tgi_router")),
    "tgi-backend-cpu": (ROOT / "backends/cpu", ("tgi_backend_cpu",)),
    "tgi-conformance": (ROOT / "conformance-tests", ("tgi_conformance",)),
}


def bare_environment(folder: Path) -> dict[str, str]:
    """Environment variables with which `bare_python` finds the other packages of this machine; nothing compiles."""
    folder.mkdir()
    for place in map(Path, {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        for entry in place.iterdir():
            name = entry.name.split(".")[0].split("-")[0]
            if name not in HTTP and "tgi" not in entry.name and entry.suffix != ".pth" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL", "COV"))}
    return kept | {"PYTHONPATH": str(folder), "TGI_CPU_KERNELS": "torch", "HF_HUB_OFFLINE": "1"}


def bare_python() -> str:
    """The interpreter below this environment, which sees none of its packages."""
    return str(getattr(sys, "_base_executable", sys.executable))


def write_wheels(folder: Path) -> None:
    """The wheels that a build would make, without a build."""
    folder.mkdir()
    for name, (source, packages) in SOURCES.items():
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        stem = f"{name.replace('-', '_')}-{project['version']}"
        files = {f"{stem}.dist-info/{file}": text for file, text in _metadata(project).items()}
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            for package in packages:
                for file in sorted((source / package).rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts and "built" not in file.parts:
                        wheel.write(file, str(file.relative_to(source)))
            for file, text in files.items():
                wheel.writestr(file, text)
            wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{entry},,\n" for entry in wheel.namelist()))


def _metadata(project: dict[str, object]) -> dict[str, str]:
    groups = project.get("entry-points", {})
    assert isinstance(groups, dict)
    points = "".join(f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in each.items()) for group, each in groups.items())
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": points,
    }
