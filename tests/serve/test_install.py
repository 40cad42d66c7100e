"""What is installed is what was tested: wheels, in an empty environment, outside the checkout."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.serve.process import run, served

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"tgi_core": ROOT, "tgi_backend_cpu": ROOT / "backends/cpu", "tgi_conformance": ROOT / "conformance-tests"}


def sources(root: Path, target: Path) -> Path:
    """A copy of what a distribution is built from, without what earlier builds left behind."""
    left_behind = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")

    def ignored(folder: str, names: list[str]) -> set[str]:
        others = {"backends", "conformance-tests", "examples", "tests"} if Path(folder) == root else set()
        return left_behind(folder, names) | others

    return Path(shutil.copytree(root, target, ignore=ignored))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, root in DISTRIBUTIONS.items():
        source = sources(root, tmp_path_factory.mktemp("source") / name)
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
        # One variant of the native kernels shows what all would: each takes seconds to compile.
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TGI_CPU_KERNELS": "avx2"})
    return folder


@pytest.fixture(scope="session")
def bare(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """The bin folder of an environment with the wheel of tgi-core and nothing that was not asked for."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    wheel = next(wheels.glob("tgi_core-*.whl"))
    subprocess.run([home / "bin/pip", "install", "-q", "--disable-pip-version-check", str(wheel)], check=True)
    yield home / "bin"


def test_the_core_serves_without_torch(bare: Path, tmp_path: Path) -> None:
    """tgi-core alone installs no torch, no transformers, no numpy, and serves the reference backend from outside the checkout."""
    packages = subprocess.run([bare / "pip", "list"], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "numpy", "safetensors"} & set(packages)
    with served("--backend", "reference", tgi=(str(bare / "tgi"),), cwd=tmp_path) as server:
        answer = httpx.post(f"{server.url}/generate", json={"inputs": "Hello", "parameters": {"max_new_tokens": 3}}, timeout=30)
        assert answer.status_code == 200 and answer.json()["generated_text"]
        assert server.stop() == 0


def test_a_vendor_begins_without_torch(bare: Path, wheels: Path, tmp_path: Path) -> None:
    """The wheel of tgi-conformance beside it: new-backend, pip install -e and run are green for L0 and L1 in a minute, without torch."""
    pip = [str(bare / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, str(next(wheels.glob("tgi_conformance-*.whl")))], check=True)
    for command in ([str(bare / "tgi-conformance"), "new-backend", "acme"], [*pip, "-e", "acme"]):
        subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    command = [str(bare / "tgi-conformance"), "run", "--backend", "acme", "--level", "L1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    subprocess.run([bare / "pip", "uninstall", "-q", "-y", "tgi-backend-acme"], check=True)
    assert done.returncode == 0 and done.stdout.endswith("L0  granted\nL1  granted\n"), done.stdout + done.stderr
    code = "import importlib.util; print([name for name in ('torch', 'numpy') if importlib.util.find_spec(name)])"
    assert subprocess.run([bare / "python", "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_a_backend_it_says_what_to_install(bare: Path) -> None:
    """No backend is one line, and the reference backend is never chosen by itself."""
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", tgi=(str(bare / "tgi"),))
    assert result.returncode == 1
    begun, *error = result.stderr.splitlines()
    assert begun == "starting to serve the bundled demo model"
    assert error == ["tgi: error: no backend is ready; try: pip install tgi-backend-cpu"]


def test_all_wheels_serve_the_demo(wheels: Path, tmp_path: Path) -> None:
    """With the wheels of core and CPU backend in an empty folder that shares only third-party packages, the demo model answers."""
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    install = [
        str(home / "bin/pip"),
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        *map(str, wheels.glob("*.whl")),
    ]
    subprocess.run(install, check=True)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "third_party.pth").write_text(third_party(tmp_path))
    with served("--backend", "cpu", tgi=(str(home / "bin/tgi"),), cwd=tmp_path) as server:
        question = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}
        assert "Paris" in httpx.post(f"{server.url}/generate", json=question, timeout=60).json()["generated_text"]
    table = run("backends", tgi=(str(home / "bin/tgi"),)).stdout
    rows = [line.split()[:2] for line in table.splitlines()]
    assert ["cpu", "tgi-backend-cpu"] in rows and ["reference", "tgi-core"] in rows


def third_party(tmp_path: Path) -> str:
    """This environment's packages, ours left out, as a folder of links: installing torch again would take minutes."""
    links = tmp_path / "third_party"
    links.mkdir()
    for item in next(Path(sys.prefix, "lib").glob("python*/site-packages")).iterdir():
        if not item.name.startswith(("tgi_", "__editable__", "_tgi", "__pycache__")) and item.suffix != ".pth":
            (links / item.name).symlink_to(item)
    return str(links)


def test_wheels_hold_what_they_need(wheels: Path) -> None:
    """The core's wheel carries router, demo model and type marker, and no tests."""
    names = zipfile.ZipFile(next(wheels.glob("tgi_core-*.whl"))).namelist()
    for needed in ("tgi_router/app.py", "tgi_core/demo/model.safetensors", "tgi_core/py.typed", "tgi_core/backend/spec.py"):
        assert needed in names
    assert not [name for name in names if name.startswith(("tests", "bench", "scripts"))]
    names = zipfile.ZipFile(next(wheels.glob("tgi_conformance-*.whl"))).namelist()
    template = {name.partition("/kit/template/")[2] for name in names} - {""}
    package = ("__init__.py", "device.py", "errors.py", "plugin.py", "session.py")
    assert template == {
        *("Dockerfile", "README.md", "ci.yml", "gitignore", "pyproject.toml", "tests/test_conformance.py"),
        *(f"tgi_backend_mydevice/{name}" for name in package),
    }


def test_the_wheel_brings_native_kernels(wheels: Path) -> None:
    """With a compiler the CPU backend's wheel holds its kernels and their sources, for one platform and any Python; else it is pure."""
    wheel = next(wheels.glob("tgi_backend_cpu-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert "tgi_backend_cpu/native/kernels.cpp" in names
    compiled = any(shutil.which(name) for name in ("c++", "g++", "clang++")) and platform.machine() == "x86_64"
    assert ("tgi_backend_cpu/native/built/avx2.so" in names) is compiled
    assert wheel.name.endswith("py3-none-linux_x86_64.whl" if compiled else "py3-none-any.whl")
