"""Translation of SageMaker's container environment to this server's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tgi_core.errors import StartupError

PORT = 8080
"""Port to which SageMaker sends requests."""

_NAMES = {
    "HF_MODEL_ID": "MODEL_ID",
    "HF_MODEL_REVISION": "REVISION",
    "SM_NUM_GPUS": "NUM_SHARD",
    "HF_MODEL_QUANTIZE": "QUANTIZE",
    "HF_MODEL_TRUST_REMOTE_CODE": "TRUST_REMOTE_CODE",
}


def sagemaker(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Translate a container's arguments and environment to those of `tgi`. SageMaker passes only `serve`; further arguments are
    forwarded. Raises StartupError if HF_MODEL_ID is not set."""
    if not environ.get("HF_MODEL_ID"):
        raise StartupError("HF_MODEL_ID: not set; set it to the model's id on the Hub, or to /opt/ml/model")
    mapped = {ours: environ[theirs] for theirs, ours in _NAMES.items() if environ.get(theirs)}
    rest = list(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    return ["serve", "--port", str(PORT), *rest], {**environ, **mapped}
