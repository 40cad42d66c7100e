"""What is wrong with device, software or model is one line that says what to do; `tgi serve` ends with it and with status 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tgi_backend_neuron import native_plugin

from tests.engine.tiny_models import silent
from tests.neuron.opened import PLAN, open_neuron
from tests.neuron.standin import LEGACY, NATIVE, environment, make_machine, make_packages
from tests.serve.process import TGI, free_port
from tests.serve.process import environment as variables
from tgi_core.backend import BackendError, DeviceBusy, DeviceLost, OpenOptions, OutOfMemory, Unsupported, WarmupPlan


@pytest.mark.parametrize(
    ("versions", "busy", "arguments", "expected"),
    [
        ({}, (), (), "inf2.xlarge: not installed: optimum-neuron, "),
        (LEGACY, (1,), (), "2 Neuron cores are needed, and of 2 another process holds 1; neuron-ls shows which"),
        (LEGACY, (), ("--max-batch-size", "4000000"), "KV cache: 4000000 slots of 2048 tokens need 33,554,432,000,000 bytes"),
    ],
)
def test_serving(
    tmp_path: Path, versions: dict[str, str], busy: tuple[int, ...], arguments: tuple[str, ...], expected: str
) -> None:
    """Software, a device that is taken, and memory: each ends a start with its line."""
    machine = make_machine(tmp_path / "machine", "inf2.xlarge", busy=busy)
    command = [*TGI, "serve", "--backend", "neuron", *arguments, "--hostname", "127.0.0.1", "--port", str(free_port())]
    extra = variables(environment(tmp_path, versions, machine))
    done = subprocess.run(command, env=extra, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert expected in line


_OPEN = """
import sys
from tgi_backend_neuron import plugin
from tgi_core.backend import BackendError, OpenOptions, WarmupPlan
from tgi_core.backend.session import Session
def silent(*progress): pass
try:
    session = Session(plugin.backend_open(OpenOptions(sys.argv[1], memory_fraction=float(sys.argv[2])), silent), "neuron")
    session.warmup(WarmupPlan(max_rows=4000000), silent)
except BackendError as error:
    print(type(error).__name__, *[name for name in ("torch", "torch._dynamo", "transformers", "optimum") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("busy", "share", "expected"),
    [((1,), "0.9", ["DeviceBusy"]), ((), "1e-8", ["OutOfMemory"]), ((), "0.9", ["OutOfMemory", "torch"])],
    ids=["taken", "weights", "slots"],
)
def test_what_is_known_without_torch(tmp_path: Path, llama: Path, busy: tuple[int, ...], share: str, expected: list[str]) -> None:
    """A device that is taken and weights that do not fit are found before torch is imported, slots before any other library is."""
    extra = environment(tmp_path, LEGACY, make_machine(tmp_path / "machine", busy=busy))
    command = [sys.executable, "-c", _OPEN, str(llama), share]
    done = subprocess.run(command, env=extra, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected


@pytest.mark.usefixtures("machine")
def test_wrong_torch(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version, and the one that is needed; nothing of it is imported."""
    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "other", {"torch": "2.13.0"})))
    with pytest.raises(
        DeviceLost, match=r"torch 2\.13\.0 is installed, and torch-neuronx 2\.8\.0\S+ needs 2\.8; pip install torch==2\.8"
    ):
        open_neuron(llama)
    monkeypatch.syspath_prepend(str(make_packages(tmp_path / "native", NATIVE | {"torch": "2.14.0"})))
    with pytest.raises(DeviceLost, match="TorchNeuron needs trn2 or trn3"):
        native_plugin.backend_open(OpenOptions(str(llama)), silent)
    make_machine(tmp_path / "machine", "trn2.48xlarge")
    with pytest.raises(DeviceLost, match=r"torch 2\.14\.0 is installed, and torch-neuronx 2\.13\.3\.0 needs 2\.13"):
        native_plugin.backend_open(OpenOptions(str(llama)), silent)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("variables", "options", "error", "message"),
    [
        (
            {},
            {"memory_fraction": 1e-8},
            OutOfMemory,
            "weights of [\\d,]+ bytes in .*: 2 cores of inf2.stand-in have 34,359,738,368",
        ),
        ({"HF_NUM_CORES": "3"}, {}, Unsupported, "--num-shard 3: 2 Neuron cores are visible"),
        ({"HF_NUM_CORES": "two"}, {}, Unsupported, "--num-shard two: 2 Neuron cores are visible"),
        ({"HF_AUTO_CAST_TYPE": "tf32"}, {"dtype": "auto"}, Unsupported, "--dtype tf32: Neuron devices run bfloat16"),
        ({}, {"dtype": "float64"}, Unsupported, "--dtype float64: Neuron devices run bfloat16"),
    ],
)
def test_options(
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: dict[str, object],
    error: type[BackendError],
    message: str,
) -> None:
    """The flag is named, or the bytes."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=message):
        open_neuron(llama, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("machine")
def test_variables_of_tgi(llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """HF_NUM_CORES and HF_AUTO_CAST_TYPE count; those of earlier images are named, with the flags that replace them."""
    for name, value in {"HF_NUM_CORES": "1", "HF_AUTO_CAST_TYPE": "bf16", "HF_BATCH_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    session, capacity = open_neuron(llama, dtype="auto")
    assert "HF_BATCH_SIZE is ignored: use --max-batch-size" in caplog.text
    assert any(each.reason == "tensor parallel over 1 cores" for each in session.capabilities().kernels)
    assert any("bfloat16" in each.name for each in capacity.memory)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("The PyTorch Neuron Runtime could not be initialized. Neuron Driver issues are logged", DeviceBusy),
        ("Virtual Neuron Core(s) not available - Requested:2 Available:0", DeviceBusy),
        ("Failed to allocate 2147483648 bytes, NRT_RESOURCE", OutOfMemory),
    ],
)
def test_what_loading_raises(llama: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[BackendError]) -> None:
    """The vendor's RuntimeErrors are told apart by their texts."""
    from optimum.neuron import NeuronModelForCausalLM

    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(NeuronModelForCausalLM, "export", fail)
    with pytest.raises(error, match=r"neuron-ls|--max-batch-size"):
        open_neuron(llama, PLAN)


@pytest.mark.usefixtures("machine")
def test_memory(llama: Path) -> None:
    """Without a number of rows, as many as fit; where not even one does, the bytes are named."""
    assert open_neuron(llama, WarmupPlan(max_row_tokens=256), memory_fraction=2.5e-5)[1].max_rows == 2
    with pytest.raises(OutOfMemory, match=r"KV cache: 1 slots of 256 tokens need [\d,]+ bytes, and [\d,]+ are free"):
        open_neuron(llama, WarmupPlan(max_row_tokens=256), memory_fraction=1.6e-5)
