"""The images: what their files say, and the same steps done in an environment of this machine, with its torch in place of theirs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.dockerfile import commands, copies, environment, read
from tests.kit.environment import Environment
from tests.serve.process import environment as variables
from tests.serve.process import free_port, started

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "tgi_core/demo"
KINDS = ("cuda", "rocm", "xpu")
VENDORS = ("gaudi", "neuron")
"""Images whose base holds torch and the vendor's libraries."""
ALL = ("cpu", *KINDS, *VENDORS)


@pytest.mark.parametrize("kind", ALL)
def test_what_is_copied_is_there(kind: str) -> None:
    """Every source of a COPY is in the repository, and let through by .dockerignore."""
    ignored, *passed = (ROOT / ".dockerignore").read_text().split()
    assert ignored == "*"
    for sources, _ in copies(read(ROOT / f"Dockerfile.{kind}")):
        for source in sources:
            assert (ROOT / source).exists() and f"!{Path(source).parts[0]}" in passed, source


@pytest.mark.parametrize("kind", ALL)
def test_how_it_runs(kind: str) -> None:
    """Two stages, the second without the sources; not as root; TGI's port and cache; an entry point that gets the signals."""
    instructions = read(ROOT / f"Dockerfile.{kind}")
    assert [item.rest.split()[-1] for item in instructions if item.word == "FROM"] == ["wheels", "runtime"]
    last = {item.word: item.rest for item in instructions if item.stage == "runtime"}
    assert last["USER"] == "10001:10001" and last["EXPOSE"] == "80"
    assert json.loads(last["ENTRYPOINT"]) == ["/opt/tgi/share/entrypoint.sh"] and json.loads(last["CMD"]) == ["--json-output"]
    assert "/opt/tgi/share/healthcheck.py" in last["HEALTHCHECK"] and "--start-period" in last["HEALTHCHECK"]
    found = environment([item for item in instructions if item.stage == "runtime"])
    assert (found["HUGGINGFACE_HUB_CACHE"], found["PORT"], found["BACKEND"]) == ("/data", "80", kind)
    copied = [source for item in instructions if item.stage == "runtime" for source in item.rest.split() if item.word == "COPY"]
    assert not {"tgi_core", "router", "."} & set(copied)


@pytest.mark.parametrize("kind", ALL)
def test_nothing_is_taken_from_elsewhere(kind: str) -> None:
    """No secret is built in; packages come from one index at a time, so that no name can be taken from a second one; nothing is piped
    from the network into a shell."""
    instructions = read(ROOT / f"Dockerfile.{kind}")
    names = [item.rest.partition("=")[0] for item in instructions if item.word == "ARG"] + list(environment(instructions))
    assert not [name for name in names if re.search("TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", name)]
    text = (ROOT / f"Dockerfile.{kind}").read_text()
    assert not re.search(r"--extra-index-url|--trusted-host|curl|wget|\bADD\b|chmod 777|sudo", text)
    bases = [item.rest for item in instructions if item.rest.startswith("BASE=")]
    assert all(
        ":" in base and ("latest" not in base or re.search(r"/\d+\.\d+\.\d+/", base)) for base in bases
    )  # Intel's tag of a release


@pytest.mark.parametrize("kind", KINDS)
def test_one_image_in_three_files(kind: str) -> None:
    """The files differ in the name of the backend, the base and the build of torch: what is done below for one holds for all."""
    found, first = (
        [item for item in read(ROOT / f"Dockerfile.{name}") if not re.match("BASE=|TORCH=|TORCH_INDEX=", item.rest)]
        for name in (kind, "cuda")
    )
    assert [(item.word, item.rest.replace(kind, "cuda")) for item in found] == [(item.word, item.rest) for item in first]


@pytest.mark.parametrize("kind", VENDORS)
def test_what_the_base_holds_is_kept(kind: str) -> None:
    """pip sees the base's packages, and may replace neither torch nor the vendor's; no wheel is asked for by their names."""
    instructions = read(ROOT / f"Dockerfile.{kind}")
    assert commands(instructions, "python3 -m venv --system-site-packages /opt/tgi")
    (step,) = commands(instructions, "pip install")
    assert " -c /opt/tgi/held.txt " in step and f"tgi_backend_{kind}-" in step
    assert not re.search(r"torch|habana|neuronx-|neuronx_|libneuron", step)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "neuron",
            [
                "torch==2.8.0",
                "torch-neuronx==2.8.0.2.10",
                "torch_xla==2.8.1",
                "neuronx-cc==2.21.1",
                "neuronx_distributed==0.15.1",
            ],
        ),
        (
            "gaudi",
            ["torch==2.11.0a0", "torch_tb_profiler==0.4.0", "habana-torch-plugin==1.24.1.5", "habana_media_loader==1.24.1.5"],
        ),
    ],
)
def test_what_the_vendor_ships_is_held(kind: str, lines: list[str]) -> None:
    """The names of the vendor's packages are picked from what pip lists, however they are spelled; others stay free."""
    (step,) = commands(read(ROOT / f"Dockerfile.{kind}"), "pip list")
    free = ["torchserve==0.1", "transformers==4.57.1", "optimum==2.0.0"]
    found = subprocess.run(  # noqa: S602  a line of our own
        step.partition("|")[2].partition(">")[0],
        shell=True,
        input="\n".join(lines + free),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == lines


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what the image's own commands install."""
    instructions = read(ROOT / "Dockerfile.cuda")
    folder = tmp_path_factory.mktemp("image")
    made, context = Environment.make(folder / "tgi"), folder / "src"
    for sources, target in copies([item for item in instructions if item.stage == "wheels"]):
        for source in sources:
            copy(ROOT / source, context / (source if target == "./" else target))
    steps = [
        *commands(instructions, "pip wheel"),
        *(step for step in commands(instructions, "pip install") if "/wheels/" in step),
    ]
    assert len(steps) == 2
    for step in steps:
        here = step.replace("/wheels", str(folder / "wheels")).replace("--no-cache-dir", "--no-build-isolation -q")
        done = subprocess.run(here, shell=True, cwd=context, env=made.variables, capture_output=True, text=True, check=False)  # noqa: S602
        assert done.returncode == 0, done.stderr
    ((programs, target),) = copies([item for item in instructions if item.stage == "runtime"])
    assert target == "/opt/tgi/share/"
    for program in programs:
        copy(ROOT / program, made.home / "share" / Path(program).name)
    return made


def copy(source: Path, goal: Path) -> None:
    """A file or a folder, without what earlier builds left behind."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, goal, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    else:
        shutil.copy(source, goal)


def of_image(made: Environment, **more: str) -> dict[str, str]:
    """The environment of a container."""
    return made.variables | environment(read(ROOT / "Dockerfile.cuda")) | {"PATH": made.variables["PATH"]} | more


def test_the_steps(image: Environment) -> None:
    """The backend is installed from its wheel and found; on this machine the container ends with the reason, in one line."""
    entry = str(image.home / "share/entrypoint.sh")
    listed = subprocess.run(
        [entry, "tgi", "backends"], env=of_image(image), cwd=image.home, capture_output=True, text=True, check=True
    )
    assert re.search(r"^cuda +tgi-backend-cuda ", listed.stdout, re.M)
    extra = variables(of_image(image, PORT=str(free_port()), HUGGINGFACE_HUB_CACHE=str(image.home)))
    command = [entry, "--model-id", str(DEMO), "--json-output"]
    done = subprocess.run(command, env=extra, cwd=image.home, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "error: no NVIDIA device" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_sagemaker(image: Environment) -> None:
    """`serve` is how SageMaker starts a container; without a model the line names its variable."""
    command = [str(image.home / "share/entrypoint.sh"), "serve"]
    done = subprocess.run(command, env=of_image(image), cwd=image.home, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "HF_MODEL_ID: not set" in done.stderr, done.stderr


def test_it_serves_and_stops(image: Environment) -> None:
    """Started with an argument as TGI's image is, it serves at PORT, the health check agrees, and SIGTERM reaches the server."""
    port = str(free_port())
    extra = of_image(image, PORT=port, BACKEND="reference", HUGGINGFACE_HUB_CACHE=str(image.home))
    check = [str(image.home / "bin/python"), str(image.home / "share/healthcheck.py")]
    assert subprocess.run(check, env=extra, capture_output=True, check=False).returncode == 1
    command = [str(image.home / "share/entrypoint.sh"), "--model-id", str(DEMO), "--hostname", "127.0.0.1"]
    with started([*command, "--drain-delay", "0"], extra, image.home) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        assert subprocess.run(check, env=extra, capture_output=True, check=False).returncode == 0
        assert server.stop() == 0
