"""Setup of the peers in a cache directory: virtual environments, llama.cpp built for this CPU, models in their formats.

Steps whose output exists are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.child import ROOT, EngineProcess
from bench.random_model import make, make_looping
from bench.shapes import SHAPES

HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tgi-core" / "bench-peers"
REQUIREMENTS = Path(__file__).parent / "requirements"
BUILD = HOME / "llama.cpp-build"
LLAMA_SERVER = BUILD / "bin" / "llama-server"


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to compare with: its virtual environment's name (None for this project's) and how it is started."""

    module: str
    venv: str | None = None
    torch: bool = False
    """Whether to install torch first, pinned as in constraints.txt, so that pip does not select a build of several gigabytes."""
    without: tuple[str, ...] = ()
    """Packages to uninstall because they were built for another torch and break its import."""
    install: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the installation."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the engine and its server."""

    @property
    def folder(self) -> Path:
        """Directory of its programs."""
        return Path(sys.executable).parent if self.venv is None else HOME / f"{self.venv}-venv" / "bin"

    def process(self, name: str) -> EngineProcess:
        """Return the engine, not started yet."""
        module = f"bench.peers.engines.{self.module}"
        return EngineProcess(name, self.folder / "python", module, self.run, HOME / f"{self.module}.log")


CORES = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
"""Use all cores: by default, vLLM reserves one for its server, so only one of two would compute."""

GGUF = {"": "BF16", "-q8_0": "Q8_0", "-q4_0": "Q4_0"}
"""Types of llama.cpp's files, by the end of their names."""
OPENVINO = {"": ("fp16",), "-int8": ("int8",), "-int4": ("int4", "--sym", "--group-size", "64", "--ratio", "1.0")}
"""`optimum-cli`'s weight formats, by the end of the folders' names. Groups of 128, the default, don't divide SmolLM2's 576 inputs."""

_VISION = ("torchvision", "torchaudio", "torchcodec", "triton")

PEERS = {
    "ours": Peer("ours"),
    "transformers": Peer("transformers", "transformers", torch=True, run={"OMP_WAIT_POLICY": "PASSIVE"}),
    "vLLM": Peer(
        "vllm",
        "vllm",
        torch=True,
        without=_VISION,
        run={"VLLM_CPU_OMP_THREADS_BIND": CORES, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"},
    ),
    "llama.cpp": Peer(
        "llama_cpp",
        "llama-cpp",
        install={"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"},  # built below, together with the server
        run={"LLAMA_CPP_LIB_PATH": str(BUILD / "bin")},
    ),
    "OpenVINO GenAI": Peer("openvino", "openvino", torch=True, without=_VISION),
}


def prepare() -> None:
    """Set up everything. Raises CalledProcessError."""
    HOME.mkdir(parents=True, exist_ok=True)
    for peer in PEERS.values():
        if peer.venv is not None:
            _install(peer, peer.venv)
    _build_llama_cpp()
    for name in SHAPES:
        model = make(name)
        _convert(name, model)
    _convert_to_gguf("135m", make_looping(), "", "BF16")


def _install(peer: Peer, venv: str) -> None:
    requirements = REQUIREMENTS / f"{venv}.txt"
    stamp = peer.folder.parent / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    print(f"installing {venv} into {peer.folder.parent}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", peer.folder.parent], check=True)
    pip = [str(peer.folder / "pip"), "install", "--disable-pip-version-check", "-q", "-c", str(_constraints())]
    environment = {**os.environ, **peer.install}
    subprocess.run([*pip, "-U", "pip"], check=True)
    if peer.torch:
        subprocess.run([*pip, "torch"], check=True)
    subprocess.run([*pip, "-r", str(requirements)], check=True, env=environment)
    if peer.without:
        subprocess.run([str(peer.folder / "pip"), "uninstall", "-q", "-y", *peer.without], check=True)
    stamp.write_text(requirements.read_text())


def _constraints() -> Path:
    """Write the pins of torch and Triton to a file. Our other pins are no business of the peers, which have their own."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    file = HOME / "constraints.txt"
    file.write_text("".join(f"{pin}\n" for pin in pins if pin.startswith(("torch==", "triton=="))))
    return file


def _build_llama_cpp() -> None:
    """Build llama.cpp's library and server for this CPU, from the source bundled with llama-cpp-python."""
    if LLAMA_SERVER.exists():
        return
    source = HOME / "src" / "llama-cpp-python"
    if not source.exists():
        _fetch_llama_cpp(source)
    options = ("TESTS", "EXAMPLES", "APP", "UI")
    configure = [
        "cmake",
        "-S",
        str(source / "vendor" / "llama.cpp"),
        "-B",
        str(BUILD),
        "-DCMAKE_BUILD_TYPE=Release",
        "-DGGML_NATIVE=ON",
    ]
    flags = ["-DBUILD_SHARED_LIBS=ON", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"]
    subprocess.run([*configure, *flags, *(f"-DLLAMA_BUILD_{name}=OFF" for name in options)], check=True)
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count()), "--target", "llama-server"], check=True)


def _fetch_llama_cpp(source: Path) -> None:
    pip, folder = PEERS["llama.cpp"].folder / "pip", source.parent
    pinned = next(line for line in (REQUIREMENTS / "llama-cpp.txt").read_text().splitlines() if line.startswith("llama-cpp"))
    command = [
        str(pip),
        "download",
        "--disable-pip-version-check",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(folder),
        pinned,
    ]
    subprocess.run(command, check=True, env={**os.environ, **PEERS["llama.cpp"].install})
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    next(folder.glob("llama_cpp_python-*/")).rename(source)


def _convert(name: str, model: Path) -> None:
    """Convert the model to llama.cpp's and OpenVINO's formats."""
    for suffix, kind in GGUF.items():
        _convert_to_gguf(name, model, suffix, kind)
    for suffix, options in OPENVINO.items():
        folder = model.with_name(f"{model.name}-openvino{suffix}")
        if not (folder / "openvino_model.bin").exists():
            command = [str(PEERS["OpenVINO GenAI"].folder / "optimum-cli"), "export", "openvino", "--model", str(model)]
            command += ["--task", "text-generation-with-past", "--weight-format", *options, str(folder)]
            subprocess.run(command, check=True)


def _convert_to_gguf(name: str, model: Path, suffix: str, kind: str) -> None:
    gguf = model.with_name(f"{model.name}{suffix}.gguf")
    if not gguf.exists():
        command = [str(PEERS["llama.cpp"].folder / "python"), "-m", "bench.peers.gguf_file"]
        subprocess.run([*command, name, str(model), str(gguf), kind], check=True, cwd=ROOT)
