"""The parts of a model that the router uses: its tokenizer and its chat template."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import read_optional_json
from tgi_core.token_span import longest_span
from tgi_core.tokenizer import Tokenizer
from tgi_router.errors import TemplateFailed
from tgi_router.templates import DEFAULT, ChatTemplates

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that the routes serve. `name` is the id that clients see."""

    name: str
    revision: str | None
    tokenizer: Tokenizer
    chat_templates: ChatTemplates | None
    token_span: int | None = None
    """Maximum number of bytes that one token can represent; None if unknown."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether prompts go to an encoder, such as T5's, so that answers do not continue them."""
        return self.tokenizer.start_id is not None

    @classmethod
    def load(cls, directory: Path, name: str, settings: Settings) -> ServedModel:
        """Load from a model directory. Raises StartupError; a missing or broken template only disables chat."""
        return cls(
            name=settings.served_model_name or name,
            revision=_sha(directory) or settings.revision,
            tokenizer=Tokenizer.load(directory),
            chat_templates=_chat_templates(directory, settings),
            token_span=longest_span(directory / "tokenizer.json"),
        )


def _sha(directory: Path) -> str | None:
    """Return the commit of a model in the hub's cache, which names snapshots by commit."""
    return directory.name if directory.parent.name == "snapshots" else None


def _chat_templates(directory: Path, settings: Settings) -> ChatTemplates | None:
    given = settings.tokenizer_config_path
    config = _read(directory / "tokenizer_config.json" if given is None else Path(given))
    sources = _sources(directory, config)
    if DEFAULT not in sources:
        logger.warning("%s: no chat template; /v1/chat/completions will respond with template_error", directory)
        return None
    templates = ChatTemplates(sources, _token(config.get("bos_token")), _token(config.get("eos_token")))
    try:
        templates.check()
    except TemplateFailed as error:
        logger.warning("%s: chat template does not compile; /v1/chat/completions will respond with: %s", directory, error)
    return templates


def _sources(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name. Files take precedence over chat_template.json, and that over the tokenizer's config."""
    sources = _named(config.get("chat_template")) | _named(_read(directory / "chat_template.json").get("chat_template"))
    for path in [directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))]:
        try:
            if path.exists():
                name = DEFAULT if path.parent == directory else path.stem
                sources[name] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            logger.warning("%s: not readable: %s", path, error)
    return sources


def _named(declared: Any) -> dict[str, str]:
    """Parse a template, or a list of named templates."""
    entries = declared if isinstance(declared, list) else [{"name": DEFAULT, "template": declared}]
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }


def _read(path: Path) -> dict[str, Any]:
    """Load a JSON file. Errors in it only disable the template."""
    try:
        return read_optional_json(path)
    except StartupError as error:
        logger.warning("%s", error)
        return {}


def _token(declared: Any) -> str | None:
    """Return the text of a special token, given as a string or as an object."""
    text = declared.get("content") if isinstance(declared, dict) else declared
    return text if isinstance(text, str) else None
