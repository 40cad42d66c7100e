"""Every setting, once: its flag, environment variable, default, bounds and help come from one field of `Settings`."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from tgi_core.errors import StartupError


def _setting(
    default: Any,
    text: str,
    *,
    group: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    short: str | None = None,
) -> Any:
    """A field of `Settings` with what its flag needs. Bounds are inclusive."""
    metadata = {"help": text, "group": group, "minimum": minimum, "maximum": maximum, "choices": choices, "short": short}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `tgi serve` runs with. None leaves a value to be derived from the model and the machine."""

    # model
    revision: str | None = _setting(None, "Revision of the model on the hub.", group="Model")
    dtype: str = _setting(
        "auto",
        "Number format of weights and cache; auto takes the model's own.",
        group="Model",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    tokenizer_config_path: str | None = _setting(
        None, "File to read instead of the model's tokenizer_config.json.", group="Model"
    )
    served_model_name: str | None = _setting(None, "Name under which the model is listed; default: as given.", group="Model")
    # device
    backend: str | None = _setting(None, "Backend to use; default: the one accelerator that is ready, else cpu.", group="Device")
    memory_fraction: float = _setting(
        0.9, "Share of the memory limit that the server may use.", group="Device", minimum=0.01, maximum=1.0
    )
    kv_cache_tokens: int | None = _setting(
        None, "Tokens that the KV cache holds; default: what fits into memory.", group="Device", minimum=1
    )
    # HTTP
    hostname: str = _setting("0.0.0.0", "Address to listen on.", group="HTTP")
    port: int = _setting(3000, "Port to listen on.", group="HTTP", minimum=0, maximum=65535, short="-p")
    payload_limit: int = _setting(2_000_000, "Largest request body in bytes.", group="HTTP", minimum=1)
    api_key: str | None = _setting(None, "Key that clients send as a bearer token.", group="HTTP")
    cors_allow_origin: tuple[str, ...] = _setting((), "Origin that browsers may call from; repeatable.", group="HTTP")
    graceful_termination_timeout: int = _setting(
        90, "Seconds that running requests get after SIGTERM.", group="HTTP", minimum=0, short="-g"
    )
    # limits
    max_concurrent_requests: int = _setting(
        128, "Requests in the server at once; more are answered 429.", group="Limits", minimum=1
    )
    max_best_of: int = _setting(2, "Largest best_of.", group="Limits", minimum=1)
    max_stop_sequences: int = _setting(4, "Most stop strings per request.", group="Limits", minimum=0)
    max_top_n_tokens: int = _setting(5, "Largest top_n_tokens.", group="Limits", minimum=0)
    max_client_batch_size: int = _setting(4, "Most prompts in one completions call.", group="Limits", minimum=1)
    max_input_tokens: int | None = _setting(
        None, "Longest prompt in tokens; default: max-total-tokens minus 1.", group="Limits", minimum=1
    )
    max_total_tokens: int | None = _setting(
        None, "Longest prompt plus answer in tokens; default: what the model and the memory allow.", group="Limits", minimum=2
    )
    validation_workers: int = _setting(2, "Threads that tokenize and render chat templates.", group="Limits", minimum=1)
    enable_prefill_logprobs: bool = _setting(False, "Compute logprobs of the prompt for decoder_input_details.", group="Limits")
    # scheduling
    max_batch_size: int | None = _setting(None, "Most requests in one batch.", group="Scheduling", minimum=1)
    max_batch_prefill_tokens: int | None = _setting(
        None, "Most tokens computed in one step; default: what the backend advises.", group="Scheduling", minimum=1
    )
    # logs
    json_output: bool = _setting(False, "Log one JSON object per line.", group="Logs")

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_bounds(spec, getattr(self, spec.name))
        if self.max_input_tokens and self.max_total_tokens and self.max_input_tokens >= self.max_total_tokens:
            raise StartupError(
                f"--max-input-tokens {self.max_input_tokens} must be less than --max-total-tokens {self.max_total_tokens}"
            )


def flag(name: str) -> str:
    """The flag of a setting: `--kebab-case`."""
    return "--" + name.replace("_", "-")


def environment_variable(name: str) -> str:
    """The environment variable of a setting: upper snake case, as in TGI."""
    return name.upper()


def check_bounds(spec: Field[Any], value: object) -> None:
    """Raise StartupError when a value breaks its setting's bounds or choices."""
    low, high, choices = spec.metadata["minimum"], spec.metadata["maximum"], spec.metadata["choices"]
    if value is None:
        return
    if choices and value not in choices:
        raise StartupError(f"{flag(spec.name)} {value}: choose from {', '.join(choices)}")
    if isinstance(value, int | float) and ((low is not None and value < low) or (high is not None and value > high)):
        raise StartupError(f"{flag(spec.name)} {value}: must be {_range_text(low, high)}")


def _range_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}"
