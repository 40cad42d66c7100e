"""All settings: each field of `Settings` is a flag, an environment variable and a config-file key, with its default, bounds and help.

`setting` fields take effect; `ignored` fields give the reason why they do not.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields

from tgi_core.errors import StartupError
from tgi_core.settings.model import EVERY_COMMAND, ModelSettings
from tgi_core.settings.spec import Scope, check_bounds, environment_variable, flag, ignored, setting, setting_of

__all__ = ["Scope", "Settings", "check_bounds", "environment_variable", "flag", "settings_in"]

_BOTH = Scope.ROUTER | Scope.SHARD

_OWN_FOLDER = "the socket is created in a private directory"
MAX_DRAFTS = 16
"""Maximum number of drafts per request and step."""
_WITHOUT_MIXING = "on backends that cannot mix prefill and decode; elsewhere requests join at every step"
_OWN_CHOICE = (
    "the backend chooses its kernels at startup and logs its choice; TGI_CUDA_ATTENTION, TGI_ROCM_ATTENTION etc. restrict it"
)


@dataclass(frozen=True, slots=True)
class Settings(ModelSettings):
    """The settings of `tgi serve`. None means derived from the model and the machine."""

    # device
    backend: str | None = setting(
        None, "Backend to use. Default: the accelerator, if exactly one is ready; otherwise cpu.", "Device", scope=Scope.SHARD
    )
    memory_fraction: float = setting(
        0.9, "Fraction of the available device memory that the server may use.", "Device", minimum=0.01, maximum=1.0, scope=_BOTH
    )
    cuda_memory_fraction: float = setting(
        1.0,
        "TGI's name for the memory limit. Multiplied by --memory-fraction.",
        "Device",
        minimum=0.01,
        maximum=1.0,
        variables=("XPU_MEMORY_FRACTION", "HPU_MEMORY_FRACTION"),
        scope=_BOTH,
    )
    kv_cache_tokens: int | None = setting(
        None, "Capacity of the KV cache in tokens. Default: as many as fit in memory.", "Device", minimum=1
    )
    kv_cache_dtype: str = setting(
        "auto",
        "Data type of the KV cache: auto uses the model's; 8-bit types halve its size: fp8_e4m3fn on CPUs and on accelerators that support "
        "it; int8 on CPUs, where it is more accurate.",
        "Device",
        choices=("auto", "fp8_e4m3fn", "fp8_e5m2", "int8"),
        scope=Scope.SHARD,
    )
    compile_cache: str | None = setting(
        None,
        "Cache directory for compiled programs, reused across restarts, on backends that compile per shape. Default: none.",
        "Device",
        scope=Scope.SHARD,
    )
    attention: str | None = ignored(None, "Attention implementation.", "Device", _OWN_CHOICE)
    cuda_graphs: tuple[int, ...] | None = ignored(
        None,
        "Batch sizes to capture as CUDA graphs; 0 for none.",
        "Device",
        "the backend decides which graphs to capture; TGI_CUDA_GRAPHS=off and TGI_ROCM_GRAPHS=off turn them off",
    )
    disable_custom_kernels: bool = ignored(
        False, "Disable TGI's custom BLOOM kernels.", "Device", "there are no such kernels here"
    )
    inject_faults: str | None = setting(
        None, "Faults to inject into the backend for testing; see docs/faults.md.", "Device", hidden=True, scope=_BOTH
    )
    # ranks
    sharded: bool | None = setting(
        None, "Shard the model across all visible devices, or across --num-shard of them.", "Ranks", scope=_BOTH
    )
    num_shard: int | None = setting(
        None, "Number of ranks to shard the model across. Default: 1.", "Ranks", minimum=1, scope=_BOTH
    )
    shard_uds_path: str = ignored("/tmp/text-generation-server", "Unix socket between router and shard.", "Ranks", _OWN_FOLDER)  # noqa: S108
    master_addr: str = setting("localhost", "Address of rank 0, used for rendezvous across machines.", "Ranks", scope=_BOTH)
    master_port: int = setting(
        29500, "Rendezvous port of rank 0; the next port is used as well.", "Ranks", minimum=1, maximum=65534, scope=_BOTH
    )
    # shard
    in_process: bool = setting(
        False, "Run the shard inside the server process, for example in a notebook.", "Shard", scope=Scope.SERVE
    )
    engine: str = setting(
        "local",
        "Where shards run: local starts them on this machine; ray starts them on the nodes of a Ray cluster and requires the ray extra.",
        "Shard",
        choices=("local", "ray"),
        scope=Scope.SERVE,
    )
    ray_resources: str | None = setting(
        None,
        "Ray resources of each rank, such as GPU=1,CPU=4. Default: CPU=1; must be set on a cluster with accelerators.",
        "Shard",
        scope=Scope.SERVE,
    )
    replicas: int = setting(
        1,
        "Number of replicas of the model, each in its own shard. Each request goes to the replica that is expected to finish it first.",
        "Shard",
        minimum=1,
        maximum=1024,
        scope=Scope.SERVE,
    )
    min_replicas: int | None = setting(
        None,
        "Minimum number of replicas at low load; 0 closes the last one when it is idle, until the next request. Default: --replicas.",
        "Shard",
        minimum=0,
        maximum=1024,
        scope=Scope.SERVE,
    )
    max_replicas: int | None = setting(
        None,
        "Maximum number of replicas at high load. Default: --replicas.",
        "Shard",
        minimum=1,
        maximum=1024,
        scope=Scope.SERVE,
    )
    scale_up_wait: float = setting(
        1.0, "Seconds that a request waits before another replica is opened.", "Shard", minimum=0.0, scope=Scope.SERVE
    )
    scale_down_delay: float = setting(
        300.0,
        "Seconds for which the other replicas must have had room for all requests before one is closed.",
        "Shard",
        minimum=0.0,
        scope=Scope.SERVE,
    )
    on_shard_loss: str = setting(
        "continue",
        "What to do with running requests when their shard is lost: continue them on another shard or the restarted one, or fail them.",
        "Shard",
        choices=("continue", "fail"),
    )
    shard_restarts: int = setting(
        5, "Consecutive shard restarts without a generated token before the server exits.", "Shard", minimum=0
    )
    shard_token_file: str | None = setting(
        None,
        "File with the shared secret of shards on TCP and of ranks on several machines; router, shard and ranks need the same one. "
        "TGI_SHARD_TOKEN holds the secret itself.",
        "Shard",
        variables=("TGI_SHARD_TOKEN_FILE",),
        scope=_BOTH,
    )
    shard_without_token: bool = setting(
        False,
        "Let a shard or its ranks listen on TCP without a token. Anyone who can reach the port can then read user prompts.",
        "Shard",
        scope=_BOTH,
    )
    shard_tls_cert: str | None = setting(
        None, "TLS certificate (PEM) that a TCP shard, or the router in front of it, presents.", "Shard", scope=_BOTH
    )
    shard_tls_key: str | None = setting(None, "Private key (PEM) of --shard-tls-cert.", "Shard", scope=_BOTH)
    shard_tls_ca: str | None = setting(
        None,
        "CA certificates (PEM) used to verify the other side. The router needs it to use TLS; a shard needs it to require client "
        "certificates.",
        "Shard",
        scope=_BOTH,
    )
    watchdog_floor: float = setting(
        60.0,
        "Seconds that any step may take before its shard is considered hung; the limit grows with the usual duration of steps.",
        "Shard",
        minimum=0.1,
    )
    # HTTP
    hostname: str = setting("0.0.0.0", "Address or name to listen on. HOSTNAME is ignored unless it is an address.", "HTTP")
    port: int = setting(3000, "Port to listen on.", "HTTP", minimum=0, maximum=65535, short="-p")
    prometheus_port: int = ignored(
        9000, "TGI's metrics port.", "HTTP", "metrics are served at /metrics on --port, as in TGI", minimum=0, maximum=65535
    )
    payload_limit: int = setting(2_000_000, "Maximum request body size in bytes.", "HTTP", minimum=1)
    total_payload_limit: int | None = setting(
        None,
        "Maximum total size of incomplete request bodies in bytes; above it, the slowest uploads get 503. Default: 32 × --payload-limit.",
        "HTTP",
        minimum=1,
    )
    api_key: str | None = setting(None, "API key that clients must send as a bearer token or as x-api-key.", "HTTP", secret=True)
    cors_allow_origin: tuple[str, ...] = setting((), "Allowed CORS origin; repeatable.", "HTTP")
    graceful_termination_timeout: int = setting(
        90, "Seconds that running requests have to finish after SIGTERM.", "HTTP", minimum=0, short="-g"
    )
    drain_delay: float = setting(
        5.0,
        "Seconds after SIGTERM during which new requests are still accepted, so that load balancers can stop sending them.",
        "HTTP",
        minimum=0.0,
    )
    header_timeout: float = setting(30.0, "Timeout for receiving request headers, in seconds.", "HTTP", minimum=0.01)
    body_timeout: float = setting(60.0, "Timeout for receiving a request body, in seconds.", "HTTP", minimum=0.01)
    keep_alive_timeout: float = setting(75.0, "Seconds an idle connection stays open.", "HTTP", minimum=0.01)
    stream_stall_timeout: float = setting(
        60.0,
        "Seconds after which a client that stops reading its stream is disconnected and its request cancelled.",
        "HTTP",
        minimum=0.01,
    )
    strict_tgi: bool = setting(False, "Match TGI exactly where this server deliberately differs.", "HTTP")
    compute_type: str | None = setting(
        None, "Value of the x-compute-type response header. Default: number and kind of devices.", "HTTP"
    )
    ui: bool = setting(True, "Serve a page at /ui for chatting with the model and monitoring the server.", "HTTP")
    ngrok: bool = setting(False, "Expose the server through an ngrok tunnel; requires the ngrok extra.", "HTTP")
    ngrok_authtoken: str | None = setting(None, "ngrok authentication token.", "HTTP", secret=True)
    ngrok_edge: str | None = setting(None, "ngrok edge to attach to. Default: an address assigned by ngrok.", "HTTP")
    # limits
    max_concurrent_requests: int = setting(128, "Maximum concurrent requests; further ones get 429.", "Limits", minimum=1)
    max_best_of: int = setting(2, "Maximum value of best_of.", "Limits", minimum=1)
    max_stop_sequences: int = setting(4, "Maximum number of stop sequences per request.", "Limits", minimum=0)
    max_top_n_tokens: int = setting(20, "Maximum value of top_n_tokens, and of top_logprobs.", "Limits", minimum=0)
    max_client_batch_size: int = setting(4, "Maximum number of prompts in one completions request.", "Limits", minimum=1)
    max_input_tokens: int | None = setting(
        None,
        "Maximum prompt length in tokens. Default: --max-total-tokens minus 1.",
        "Limits",
        minimum=1,
        old_names=("max_input_length",),
    )
    max_total_tokens: int | None = setting(
        None, "Maximum prompt plus output length in tokens. Default: what the model and the memory allow.", "Limits", minimum=2
    )
    max_image_fetch_size: int = setting(1 << 30, "Maximum size of a fetched image in bytes.", "Limits", minimum=0)
    allowed_media_domains: tuple[str, ...] = setting(
        (),
        "Host from which images in requests are fetched; repeatable. *.HOST allows its subdomains. Default: none, only data: URLs.",
        "Limits",
    )
    validation_workers: int = setting(2, "Number of workers that tokenize and render chat templates.", "Limits", minimum=1)
    enable_prefill_logprobs: bool = setting(False, "Compute prompt logprobs for decoder_input_details.", "Limits")
    disable_grammar_support: bool = setting(False, "Refuse requests that ask for a grammar.", "Limits", scope=_BOTH)
    max_grammar_bytes: int = setting(
        65_536, "Maximum size of a JSON schema or regular expression in bytes.", "Limits", minimum=1024, scope=_BOTH
    )
    # scheduling
    max_batch_size: int | None = setting(None, "Maximum number of requests in a batch.", "Scheduling", minimum=1)
    max_batch_prefill_tokens: int | None = setting(
        None, "Maximum number of tokens computed in one step. Default: the backend's choice.", "Scheduling", minimum=1
    )
    max_batch_total_tokens: int | None = ignored(
        None,
        "Maximum number of tokens in the KV cache.",
        "Scheduling",
        "it is derived from memory; use --kv-cache-tokens to set it",
        minimum=1,
    )
    waiting_served_ratio: float = setting(
        0.3,
        "Ratio of waiting to running requests at which decoding pauses for prefill. Backends that mix prefill and decode pause only when "
        "at least four requests are waiting.",
        "Scheduling",
        minimum=0.0,
    )
    max_waiting_tokens: int = setting(
        20, f"Decode steps after which waiting requests are admitted, {_WITHOUT_MIXING}.", "Scheduling", minimum=0
    )
    max_queued_requests: int | None = setting(
        None, "Maximum number of queued requests; further ones get 429.", "Scheduling", minimum=1
    )
    max_queued_tokens: int | None = setting(
        None, "Maximum number of prompt tokens in the queue; further requests get 429.", "Scheduling", minimum=1
    )
    priority_ageing: float = setting(
        10.0, "Seconds of waiting that raise a request by one level of x-request-priority.", "Scheduling", minimum=0.0
    )
    client_header: str | None = setting(
        None,
        "Request header, set by a gateway, that identifies clients for fair queueing. Default: the client's IP address.",
        "Scheduling",
    )
    high_priority_from: tuple[str, ...] = setting(
        (),
        "IP address, network or --client-header value whose high-priority requests may overtake other clients; * for all; repeatable. "
        "Default: high priority only overtakes the client's own requests.",
        "Scheduling",
    )
    request_timeout: float | None = setting(
        None,
        "Seconds a request may take, including queueing; clients can ask for less with x-request-timeout.",
        "Scheduling",
        minimum=0.001,
    )
    prefix_caching: bool = setting(
        True, "Reuse the KV cache of shared prompt prefixes, if the backend supports it.", "Scheduling"
    )
    prefill_chunking: bool | None = ignored(
        None, "Prefill long prompts in chunks.", "Scheduling", "it is always on where the backend supports it"
    )
    speculate: int | None = setting(
        None,
        "Maximum number of draft tokens per request and step. They do not change the output. A model's own layers for multi-token "
        "prediction are used with it. Default: the number of heads of Medusa or an MLPSpeculator, 4 for EAGLE-3 and draft models, "
        "otherwise 0 (off).",
        "Scheduling",
        minimum=0,
        maximum=MAX_DRAFTS,
        scope=_BOTH,
    )
    speculator: str = setting(
        "ngram",
        "Source of drafts besides grammars, predictions and --draft-model: the request's own text (ngram), or also earlier answers to "
        "requests with the same salt (suffix).",
        "Scheduling",
        choices=("ngram", "suffix"),
    )
    watermark_gamma: float = setting(
        0.5,
        "Fraction of the vocabulary that a watermark favours at each position.",
        "Scheduling",
        minimum=0.0,
        maximum=1.0,
    )
    watermark_delta: float = setting(
        2.0, "Value added to the logits of the tokens that a watermark favours.", "Scheduling", minimum=-100.0, maximum=100.0
    )
    # logs
    json_output: bool = setting(False, "Log one JSON object per line.", "Logs", scope=EVERY_COMMAND)
    otlp_endpoint: str | None = setting(None, "OTLP/gRPC endpoint for traces; requires the otlp extra.", "Logs")
    otlp_service_name: str = setting("text-generation-inference.router", "Service name in traces.", "Logs")
    usage_stats: str = ignored(
        "off", "TGI's usage statistics.", "Logs", "this server collects none", choices=("on", "off", "no-stack")
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_bounds(spec, getattr(self, spec.name))
        _check_domains(self.allowed_media_domains)
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

    @property
    def most_replicas(self) -> int:
        """Number of replicas that there may be."""
        return max(self.replicas, self.max_replicas or 1)


def settings_in(scope: Scope) -> frozenset[str]:
    """Names of the settings that a command accepts."""
    return frozenset(spec.name for spec in fields(Settings) if scope in setting_of(spec).scope)


def _check_domains(given: tuple[str, ...]) -> None:
    """Check --allowed-media-domains. Raises StartupError."""
    for each in given:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.?", each):
            raise StartupError(f"--allowed-media-domains {each}: must be a host, such as images.example.com, or *. and a host")


def _check_networks(given: tuple[str, ...]) -> None:
    """Check --high-priority-from. Raises StartupError."""
    for each in given:
        try:
            if each != "*":
                ipaddress.ip_network(each, strict=False)
        except ValueError:
            raise StartupError(
                f"--high-priority-from {each}: must be an IP address, a network such as 10.0.0.0/8, or *; other names need --client-header"
            ) from None
