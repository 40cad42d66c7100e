"""SageMaker's way to start a container."""

from __future__ import annotations

import sys

import pytest

from tests.serve.process import run
from tgi_core.errors import StartupError
from tgi_core.settings.sagemaker import sagemaker

ENTRY = (sys.executable, "-m", "tgi_core.cli.sagemaker")


def test_the_mapping() -> None:
    """Its variables become ours and go before them; port 8080; its argument `serve` is taken, others are handed on."""
    given = {"HF_MODEL_ID": "o/m", "HF_MODEL_REVISION": "r", "SM_NUM_GPUS": "4", "HF_MODEL_QUANTIZE": "awq", "PORT": "80"}
    arguments, environ = sagemaker(["serve"], given | {"HF_MODEL_TRUST_REMOTE_CODE": "true", "REVISION": "other"})
    assert arguments == ["serve", "--port", "8080"]
    expected = {"MODEL_ID": "o/m", "REVISION": "r", "NUM_SHARD": "4", "QUANTIZE": "awq", "TRUST_REMOTE_CODE": "true"}
    assert environ == {**given, "HF_MODEL_TRUST_REMOTE_CODE": "true", **expected}
    assert sagemaker(["serve", "--json-output"], given)[0][-1] == "--json-output"
    assert sagemaker(["--json-output"], given)[0] == ["serve", "--port", "8080", "--json-output"]


def test_no_model() -> None:
    """The line names the variable."""
    with pytest.raises(StartupError, match="HF_MODEL_ID"):
        sagemaker(["serve"], {"HF_MODEL_ID": ""})
    assert run("serve", tgi=ENTRY).stderr.startswith("tgi: error: HF_MODEL_ID")


def test_the_entry_point() -> None:
    """What it starts sees the model of SageMaker, and a flag that is added."""
    result = run("serve", "--hostname", "127.0.0.1", "--port", "0", tgi=ENTRY, extra={"HF_MODEL_ID": "/not/there"})
    assert result.returncode == 1 and "model /not/there: no such directory" in result.stderr
