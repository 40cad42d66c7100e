"""Environment variables that are not settings: the libraries' own, and those of TGI that have no flag."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, and what it does; or, if it is ignored, why."""

    name: str
    text: str
    ignored: bool = False


_OWN_KERNELS = "the backend chooses its kernels at start and says which"

VARIABLES = (
    Variable("TGI_CONFIG", "File of settings, as --config."),
    Variable("TGI_SHARD_TOKEN", "Token of shards on TCP and of ranks on several machines, as --shard-token-file holds it."),
    Variable("LOG_LEVEL", "Least level of log lines: debug, info, warning or error."),
    Variable("NO_COLOR", "Plain text on a terminal too."),
    Variable("HF_TOKEN", "Token for the hub; HUGGING_FACE_HUB_TOKEN and HF_API_TOKEN are read where it is not set."),
    Variable("HF_HUB_OFFLINE", "1: nothing is fetched, models come from the cache."),
    Variable("HF_ENDPOINT", "Address of the hub."),
    Variable("HF_HOME", "Folder of the hub's cache and login; --huggingface-hub-cache sets the cache alone."),
    Variable(
        "RANK", "Number of this `tgi shard` among WORLD_SIZE ranks, as torchrun sets it; rank 0 listens, the others follow it."
    ),
    Variable("WORLD_SIZE", "Ranks in all, where each is started by itself."),
    Variable("LOCAL_RANK", "Number of this rank among LOCAL_WORLD_SIZE on its machine; default: RANK."),
    Variable("LOCAL_WORLD_SIZE", "Ranks on this machine; default: WORLD_SIZE."),
    Variable("REQUEST_LOGPROBS", "--enable-prefill-logprobs decides", ignored=True),
    Variable("TGI_WIGGLE_ROOM", "--memory-fraction says how much memory may be used", ignored=True),
    Variable("USE_FLASH_ATTENTION", _OWN_KERNELS, ignored=True),
    Variable("DISABLE_EXLLAMA", _OWN_KERNELS, ignored=True),
    Variable("EXLLAMA_VERSION", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_FLASH_ATTN_V2_TRITON", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_CUSTOM_PAGED_ATTN", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_SKINNY_GEMM", _OWN_KERNELS, ignored=True),
    Variable("LOG_FORMAT", "--json-output chooses between JSON and plain text", ignored=True),
    Variable("LOG_COLORIZE", "log lines have no colours", ignored=True),
)
