"""Environment variables that are not settings: variables of libraries, and TGI's variables without a flag."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and what it does, or why it is ignored."""

    name: str
    text: str
    ignored: bool = False


_OWN_KERNELS = "the backend chooses its kernels at startup and logs its choice"

VARIABLES = (
    Variable("TGI_CONFIG", "Config file, like --config."),
    Variable(
        "TGI_SHARD_TOKEN",
        "Shared secret of shards on TCP and of ranks on several machines, like the contents of --shard-token-file.",
    ),
    Variable("LOG_LEVEL", "Minimum log level: debug, info, warning or error."),
    Variable("NO_COLOR", "Disables colors on a terminal."),
    Variable("HF_TOKEN", "Hub token; falls back to HUGGING_FACE_HUB_TOKEN and HF_API_TOKEN."),
    Variable("HF_HUB_OFFLINE", "Set to 1 to use only cached models, without contacting the Hub."),
    Variable("HF_ENDPOINT", "URL of the Hub."),
    Variable("HF_HOME", "Directory of the Hub cache and login; --huggingface-hub-cache sets only the cache."),
    Variable(
        "RANK", "Rank of this `tgi shard` among WORLD_SIZE ranks, as set by torchrun; rank 0 listens, the others follow it."
    ),
    Variable("WORLD_SIZE", "Total number of ranks, if each is started separately."),
    Variable("LOCAL_RANK", "Rank among the LOCAL_WORLD_SIZE ranks on this machine. Default: RANK."),
    Variable("LOCAL_WORLD_SIZE", "Number of ranks on this machine. Default: WORLD_SIZE."),
    Variable("REQUEST_LOGPROBS", "use --enable-prefill-logprobs", ignored=True),
    Variable("TGI_WIGGLE_ROOM", "use --memory-fraction to limit memory", ignored=True),
    Variable("USE_FLASH_ATTENTION", _OWN_KERNELS, ignored=True),
    Variable("DISABLE_EXLLAMA", _OWN_KERNELS, ignored=True),
    Variable("EXLLAMA_VERSION", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_FLASH_ATTN_V2_TRITON", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_CUSTOM_PAGED_ATTN", _OWN_KERNELS, ignored=True),
    Variable("ROCM_USE_SKINNY_GEMM", _OWN_KERNELS, ignored=True),
    Variable("LOG_FORMAT", "--json-output chooses between JSON and plain text", ignored=True),
    Variable("LOG_COLORIZE", "log lines have no colors", ignored=True),
)
