"""What SageMaker tells a container, in this server's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tgi_core.errors import StartupError

PORT = 8080
"""Where SageMaker sends requests."""

_NAMES = {
    "HF_MODEL_ID": "MODEL_ID",
    "HF_MODEL_REVISION": "REVISION",
    "SM_NUM_GPUS": "NUM_SHARD",
    "HF_MODEL_QUANTIZE": "QUANTIZE",
    "HF_MODEL_TRUST_REMOTE_CODE": "TRUST_REMOTE_CODE",
}


def sagemaker(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Arguments for `tgi` and the environment to run it in, from those of the container. SageMaker's only argument is `serve`; more
    are handed on. Raises StartupError where no model is named."""
    if not environ.get("HF_MODEL_ID"):
        raise StartupError("HF_MODEL_ID: not set; set it to the model's id on the Hub, or to /opt/ml/model")
    mapped = {ours: environ[theirs] for theirs, ours in _NAMES.items() if environ.get(theirs)}
    rest = list(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    return ["serve", "--port", str(PORT), *rest], {**environ, **mapped}
