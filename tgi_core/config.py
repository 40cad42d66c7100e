"""Every setting, once: its flag, environment variable, key in a file, default, bounds, help and documentation come from one field of
`Settings`. A field made by `setting` is honoured; `ignored` and `refused` say why not, and become `setting` when it is."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields

from tgi_core.errors import StartupError
from tgi_core.settings.spec import check_bounds, environment_variable, flag, ignored, refused, setting

__all__ = ["Settings", "check_bounds", "environment_variable", "flag"]

_OWN_FOLDER = "the socket is in a folder of its own, which only this user can enter"
_NO_WATERMARK = "there is no watermarking; requests that ask for it are refused"
_WITHOUT_MIXING = "only where the backend cannot mix prefill and decode, elsewhere all join at every step"
_OWN_CHOICE = "the backend chooses its kernels at start and says which"


@dataclass(frozen=True, slots=True)
class Settings:
    """What `tgi serve` runs with. None leaves a value to be derived from the model and the machine."""

    # model
    model_id: str | None = setting(None, "Model: a directory, or an id on the hub; default: the bundled demo.", "Model")
    revision: str | None = setting(None, "Revision of the model on the hub: branch, tag or commit.", "Model")
    dtype: str = setting(
        "auto",
        "Number format of weights and cache; auto takes the model's own.",
        "Model",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantize: str | None = refused(
        None,
        "Quantization of the weights.",
        "Model",
        "quantization is not available yet; leave it out to serve the weights as they are",
        choices=(
            *("awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes"),
            *("bitsandbytes-nf4", "bitsandbytes-fp4", "fp8"),
        ),
    )
    tokenizer_config_path: str | None = setting(None, "File to read instead of the model's tokenizer_config.json.", "Model")
    served_model_name: str | None = setting(None, "Name under which the model is listed; default: as given.", "Model")
    trust_remote_code: bool = ignored(
        False,
        "Run code from the model's repository.",
        "Model",
        "code from a model's repository is never run; a model that needs it does not load",
    )
    lora_adapters: str | None = setting(
        None, "LoRA adapters to serve, separated by commas: HUB_ID, HUB_ID@REVISION or NAME=PATH.", "Model"
    )
    rope_scaling: str | None = refused(
        None,
        "Scaling of rotary positions.",
        "Model",
        "rope_scaling of the model's config.json is what counts; set it there",
        choices=("linear", "dynamic"),
    )
    rope_factor: float | None = refused(
        None,
        "Factor of --rope-scaling.",
        "Model",
        "rope_scaling of the model's config.json is what counts; set it there",
        minimum=0.0,
    )
    # weights
    huggingface_hub_cache: str | None = setting(
        None, "Folder of the hub's cache; default: as huggingface_hub finds it.", "Weights"
    )
    weights_cache_override: str | None = setting(None, "Folder that holds a hub model's weight files.", "Weights")
    auto_convert: bool = setting(
        False, "Convert .bin weights, read without running code from them, where a model has no safetensors.", "Weights"
    )
    # device
    backend: str | None = setting(None, "Backend to use; default: the one accelerator that is ready, else cpu.", "Device")
    memory_fraction: float = setting(
        0.9, "Share of the memory limit that the server may use.", "Device", minimum=0.01, maximum=1.0
    )
    cuda_memory_fraction: float = setting(
        1.0,
        "TGI's share of the device's memory; multiplies --memory-fraction.",
        "Device",
        minimum=0.01,
        maximum=1.0,
        variables=("XPU_MEMORY_FRACTION", "HPU_MEMORY_FRACTION"),
    )
    kv_cache_tokens: int | None = setting(
        None, "Tokens that the KV cache holds; default: what fits into memory.", "Device", minimum=1
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Number format of the KV cache: that of the model, or one of 8 bits, which halves it, where the backend has it.",
        "Device",
        choices=("auto", "fp8_e4m3fn", "fp8_e5m2"),
    )
    attention: str | None = ignored(None, "Attention kernels.", "Device", _OWN_CHOICE)
    cuda_graphs: tuple[int, ...] | None = ignored(
        None, "Batch sizes to capture as graphs, 0 for none.", "Device", "the backend decides which graphs it captures"
    )
    disable_custom_kernels: bool = ignored(False, "Do without TGI's kernels for BLOOM.", "Device", "there are no such kernels")
    inject_faults: str | None = setting(
        None, "Faults to inject into the backend, for tests of what comes of them: docs/faults.md.", "Device", hidden=True
    )
    # ranks
    sharded: bool | None = setting(None, "Split the model over all devices that the backend finds, or over --num-shard.", "Ranks")
    num_shard: int | None = setting(None, "Ranks to split the model over; default: 1.", "Ranks", minimum=1)
    shard_uds_path: str = ignored("/tmp/text-generation-server", "Socket between router and shard.", "Ranks", _OWN_FOLDER)  # noqa: S108
    master_addr: str = setting("localhost", "Address of rank 0, where ranks of several machines meet.", "Ranks")
    master_port: int = setting(29500, "Port where they meet; rank 0 uses the next one too.", "Ranks", minimum=1, maximum=65534)
    # shard
    in_process: bool = setting(False, "Run the shard in the server's own process, as in a notebook.", "Shard")
    on_shard_loss: str = setting(
        "continue",
        "What becomes of requests when their shard is lost: they continue on the restarted one, or they fail.",
        "Shard",
        choices=("continue", "fail"),
    )
    shard_restarts: int = setting(
        5, "Restarts of a lost shard in a row, without a token in between, after which the server ends.", "Shard", minimum=0
    )
    shard_token_file: str | None = setting(
        None,
        "File with the token of shards on TCP and of ranks on several machines, alike for shard, ranks and router; TGI_SHARD_TOKEN holds "
        "the token itself.",
        "Shard",
        variables=("TGI_SHARD_TOKEN_FILE",),
    )
    shard_without_token: bool = setting(
        False, "Let a shard or its ranks listen on TCP without a token: whoever reaches the port reads what users write.", "Shard"
    )
    shard_tls_cert: str | None = setting(
        None, "PEM file of the certificate that a shard on TCP, or the router before it, shows the other.", "Shard"
    )
    shard_tls_key: str | None = setting(None, "PEM file of the key of --shard-tls-cert.", "Shard")
    shard_tls_ca: str | None = setting(
        None,
        "PEM file of the authorities that the other side's certificate is checked against: the router needs it to use TLS, the shard to "
        "want certificates of routers.",
        "Shard",
    )
    watchdog_floor: float = setting(
        60.0, "Seconds that any step may take before its shard counts as hanging; long steps get more.", "Shard", minimum=0.1
    )
    # HTTP
    hostname: str = setting("0.0.0.0", "Address to listen on.", "HTTP")
    port: int = setting(3000, "Port to listen on.", "HTTP", minimum=0, maximum=65535, short="-p")
    prometheus_port: int = ignored(
        9000, "Port of TGI's metrics.", "HTTP", "metrics are at /metrics of --port, as in TGI", minimum=0, maximum=65535
    )
    payload_limit: int = setting(2_000_000, "Largest request body in bytes.", "HTTP", minimum=1)
    total_payload_limit: int | None = setting(
        None,
        "Bytes of all request bodies that have begun and not ended; beyond it the slowest get 503. Default: 32 times --payload-limit.",
        "HTTP",
        minimum=1,
    )
    api_key: str | None = setting(None, "Key that clients send as a bearer token.", "HTTP", secret=True)
    cors_allow_origin: tuple[str, ...] = setting((), "Origin that browsers may call from; repeatable.", "HTTP")
    graceful_termination_timeout: int = setting(
        90, "Seconds that running requests get after SIGTERM.", "HTTP", minimum=0, short="-g"
    )
    drain_delay: float = setting(
        5.0, "Seconds after SIGTERM in which new requests are still answered, while balancers learn of it.", "HTTP", minimum=0.0
    )
    header_timeout: float = setting(30.0, "Seconds in which the head of a request must have come.", "HTTP", minimum=0.01)
    body_timeout: float = setting(60.0, "Seconds in which the body of a request must have come.", "HTTP", minimum=0.01)
    keep_alive_timeout: float = setting(75.0, "Seconds that a connection may be idle.", "HTTP", minimum=0.01)
    stream_stall_timeout: float = setting(
        60.0, "Seconds after which a client that does not read loses its connection, and its request ends.", "HTTP", minimum=0.01
    )
    strict_tgi: bool = setting(False, "Answer as TGI does where this server differs on purpose.", "HTTP")
    compute_type: str | None = setting(
        None, "Value of the header x-compute-type; default: how many devices of which kind.", "HTTP"
    )
    ngrok: bool = setting(False, "Reach the server through an ngrok tunnel; needs the ngrok extra.", "HTTP")
    ngrok_authtoken: str | None = setting(None, "Token of the ngrok account.", "HTTP", secret=True)
    ngrok_edge: str | None = setting(None, "ngrok edge to attach to; default: an address that ngrok chooses.", "HTTP")
    # limits
    max_concurrent_requests: int = setting(128, "Requests in the server at once; more are answered 429.", "Limits", minimum=1)
    max_best_of: int = setting(2, "Largest best_of.", "Limits", minimum=1)
    max_stop_sequences: int = setting(4, "Most stop strings per request.", "Limits", minimum=0)
    max_top_n_tokens: int = setting(5, "Largest top_n_tokens.", "Limits", minimum=0)
    max_client_batch_size: int = setting(4, "Most prompts in one completions call.", "Limits", minimum=1)
    max_input_tokens: int | None = setting(
        None,
        "Longest prompt in tokens; default: max-total-tokens minus 1.",
        "Limits",
        minimum=1,
        old_names=("max_input_length",),
    )
    max_total_tokens: int | None = setting(
        None, "Longest prompt plus answer in tokens; default: what the model and the memory allow.", "Limits", minimum=2
    )
    max_image_fetch_size: int = ignored(1 << 30, "Largest image in bytes.", "Limits", "images are not read", minimum=0)
    validation_workers: int = setting(2, "Threads that tokenize and render chat templates.", "Limits", minimum=1)
    enable_prefill_logprobs: bool = setting(False, "Compute logprobs of the prompt for decoder_input_details.", "Limits")
    disable_grammar_support: bool = setting(False, "Refuse requests with a grammar.", "Limits")
    # scheduling
    max_batch_size: int | None = setting(None, "Most requests in one batch.", "Scheduling", minimum=1)
    max_batch_prefill_tokens: int | None = setting(
        None, "Most tokens computed in one step; default: what the backend advises.", "Scheduling", minimum=1
    )
    max_batch_total_tokens: int | None = ignored(
        None,
        "Most tokens in the cache.",
        "Scheduling",
        "it follows from the memory, as in TGI; --kv-cache-tokens sets it",
        minimum=1,
    )
    waiting_served_ratio: float = setting(
        0.3,
        "Waiting to running requests at which the running pause for them; where the backend mixes prefill and decode, for four at least.",
        "Scheduling",
        minimum=0.0,
    )
    max_waiting_tokens: int = setting(
        20, f"Steps after which waiting requests are let in; {_WITHOUT_MIXING}.", "Scheduling", minimum=0
    )
    max_queued_requests: int | None = setting(
        None, "Requests that may wait for their first step; more are answered 429.", "Scheduling", minimum=1
    )
    max_queued_tokens: int | None = setting(
        None, "Tokens of the prompts that may wait; more are answered 429.", "Scheduling", minimum=1
    )
    priority_ageing: float = setting(
        10.0, "Seconds of waiting that make up for one level of x-request-priority.", "Scheduling", minimum=0.0
    )
    client_header: str | None = setting(
        None,
        "Header by which clients are told apart for their turns, where a gateway sets it; default: the address they connect from.",
        "Scheduling",
    )
    high_priority_from: tuple[str, ...] = setting(
        (),
        "Address, network or value of --client-header whose x-request-priority high goes before other clients, * for all; repeatable;"
        " default: it goes before the client's own.",
        "Scheduling",
    )
    request_timeout: float | None = setting(
        None,
        "Seconds that a request may take, queue included; its client may ask for less by x-request-timeout.",
        "Scheduling",
        minimum=0.001,
    )
    prefix_caching: bool = setting(True, "Reuse the cache of equal prompts, where the backend can.", "Scheduling")
    prefill_chunking: bool | None = ignored(
        None, "Compute long prompts in parts.", "Scheduling", "it is on wherever the backend can"
    )
    speculate: int | None = ignored(
        None,
        "Tokens to guess ahead.",
        "Scheduling",
        "there is no speculation yet; tokens are the same without it",
        minimum=0,
        harmless=(0,),
    )
    watermark_gamma: float | None = ignored(None, "Share of the vocabulary to prefer.", "Scheduling", _NO_WATERMARK)
    watermark_delta: float | None = ignored(None, "Strength of the preference.", "Scheduling", _NO_WATERMARK)
    # logs
    json_output: bool = setting(False, "Log one JSON object per line.", "Logs")
    otlp_endpoint: str | None = setting(None, "Collector of traces, OTLP over gRPC; needs the otlp extra.", "Logs")
    otlp_service_name: str = setting("text-generation-inference.router", "Name of the service in traces.", "Logs")
    usage_stats: str = ignored(
        "off", "TGI's usage statistics.", "Logs", "this server sends none", choices=("on", "off", "no-stack")
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_bounds(spec, getattr(self, spec.name))
        if self.client_header is None:
            _check_networks(self.high_priority_from)
        if self.max_input_tokens and self.max_total_tokens and self.max_input_tokens >= self.max_total_tokens:
            raise StartupError(
                f"--max-input-tokens {self.max_input_tokens} must be less than --max-total-tokens {self.max_total_tokens}"
            )
        if self.total_payload_limit is not None and self.total_payload_limit < self.payload_limit:
            raise StartupError(
                f"--total-payload-limit {self.total_payload_limit} must be at least --payload-limit {self.payload_limit}"
            )


def _check_networks(given: tuple[str, ...]) -> None:
    """Raises StartupError."""
    for each in given:
        try:
            if each != "*":
                ipaddress.ip_network(each, strict=False)
        except ValueError:
            raise StartupError(
                f"--high-priority-from {each}: must be an address, a network as 10.0.0.0/8, or *; for other names set --client-header"
            ) from None
