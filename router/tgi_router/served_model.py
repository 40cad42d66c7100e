"""What the router reads of a model: its tokenizer and its chat template."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import read_optional_json
from tgi_core.tokenizer import Tokenizer
from tgi_router.errors import TemplateFailed
from tgi_router.templates import ChatTemplate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that the routes speak for. `name` is the id that clients see."""

    name: str
    revision: str | None
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @classmethod
    def load(cls, directory: Path, name: str, settings: Settings) -> ServedModel:
        """Read a model directory. Raises StartupError; a missing or broken template only disables chat."""
        return cls(
            name=settings.served_model_name or name,
            revision=_sha(directory) or settings.revision,
            tokenizer=Tokenizer.load(directory),
            chat_template=_chat_template(directory, settings),
        )


def _sha(directory: Path) -> str | None:
    """The hub's cache names a snapshot by its commit."""
    return directory.name if directory.parent.name == "snapshots" else None


def _chat_template(directory: Path, settings: Settings) -> ChatTemplate | None:
    given = settings.tokenizer_config_path
    config = _read(directory / "tokenizer_config.json" if given is None else Path(given))
    source = _source(directory, config)
    if source is None:
        logger.warning("%s: no chat template; /v1/chat/completions will answer template_error", directory)
        return None
    template = ChatTemplate(source, _token(config.get("bos_token")), _token(config.get("eos_token")))
    try:
        template.check()
    except TemplateFailed as error:
        logger.warning("%s: chat template does not compile; /v1/chat/completions will answer: %s", directory, error)
    return template


def _source(directory: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, then chat_template.json, then the tokenizer's config."""
    path = directory / "chat_template.jinja"
    try:
        if path.exists():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        logger.warning("%s: not readable: %s", path, error)
    for declared in (_read(directory / "chat_template.json").get("chat_template"), config.get("chat_template")):
        if isinstance(declared, list):  # named templates: only the one called default is used
            declared = next((entry.get("template") for entry in declared if entry.get("name") == "default"), None)
        if isinstance(declared, str):
            return declared
    return None


def _read(path: Path) -> dict[str, Any]:
    """A JSON file whose faults cost only the template."""
    try:
        return read_optional_json(path)
    except StartupError as error:
        logger.warning("%s", error)
        return {}


def _token(declared: Any) -> str | None:
    """A special token, given by its text or as an object with its text."""
    text = declared.get("content") if isinstance(declared, dict) else declared
    return text if isinstance(text, str) else None
