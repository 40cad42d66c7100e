"""Chat templates: where they come from and how they render."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tgi_router import ChatTemplates, ServedModel
from tgi_router.bodies import Message
from tgi_router.errors import TemplateFailed
from tgi_router.template_pool import TemplatePool
from tgi_router.templates import Conversation

from tgi_core.config import Settings
from tgi_core.model_files import DEMO

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def render(source: str | dict[str, str], *messages: dict[str, Any], **more: Any) -> str:
    """The prompt of some messages."""
    sources = source if isinstance(source, dict) else {"default": source}
    given = [Message.model_validate(message) for message in messages]
    return rendered(ChatTemplates(sources, "<s>", "</s>"), Conversation(given, **more))


def rendered(templates: ChatTemplates, conversation: Conversation) -> str:
    """The prompt, from a process of its own."""

    async def run() -> str:
        pool = TemplatePool(1, 100_000)
        try:
            return await templates.render(pool, conversation)
        finally:
            pool.close()

    return asyncio.run(run())


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<é>"}]'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ messages[0]['content'].upper().strip() }}", "<É>"),
        ("{{ messages[0]['content'][0]['text'] }}", "<é>"),
        ("{{ tools is none }}{{ undefined_thing }}", "True"),
    ],
)
def test_rendering(source: str, expected: str) -> None:
    """Templates see what transformers shows them."""
    assert render(source, user("<é>")) == expected


def test_content_is_flattened() -> None:
    """Parts become one string, images the Markdown by which they are found, tool calls their JSON."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "b"}]
    assert render(PLAIN, user(parts)) == "[user:a![](u)b]>"
    calls = [{"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    made = {"role": "assistant", "tool_calls": calls, "content": None}
    assert json.dumps(calls, separators=(",", ":")) in render(PLAIN, made, user("x"))


def test_last_assistant_message_is_continued() -> None:
    """A conversation that ends with the assistant is cut after its last words, even if the template strips them."""
    assert render(PLAIN, user("a"), {"role": "assistant", "content": "b"}) == "[user:a][assistant:b"
    stripping = PLAIN.replace("m.content", "m.content.strip()")
    assert render(stripping, user("a"), {"role": "assistant", "content": " b "}) == "[user:a][assistant:b"
    with pytest.raises(TemplateFailed):
        render("nothing", {"role": "assistant", "content": "b"})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ raise_exception('no such role') }}", "Template error: no such role"),
        ("{% if %}", "Template error: Expected an expression"),
        ("{{ messages[7].role }}", "Template error: "),
        ("{{ 1 // 0 }}", "Template error: "),
        ("{{ ''.__class__.__mro__ }}", "Template error: access to attribute"),
        ("{{ messages.append(1) }}", "Template error: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "Template error: "),
    ],
)
def test_errors(source: str, text: str) -> None:
    """Whatever goes wrong in a template, its escapes included, is a template error."""
    with pytest.raises(TemplateFailed) as caught:
        render(source, user("x"))
    assert str(caught.value).startswith(text)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory with a tokenizer and no template."""
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        (tmp_path / name).symlink_to(DEMO / name)
    return tmp_path


def source_of(directory: Path, **settings: Any) -> str:
    """What the loaded template makes of one message."""
    templates = ServedModel.load(directory, "m", Settings(**settings)).chat_templates
    assert templates is not None
    return rendered(templates, Conversation([Message(role="user", content="x")]))  # type: ignore[arg-type]


def test_sources(directory: Path, tmp_path: Path) -> None:
    """The tokenizer's config gives way to chat_template.json, and that to chat_template.jinja."""
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "{{ bos_token }}D"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<b>"}, "chat_template": named}))
    assert source_of(directory) == "<b>D"
    other = tmp_path / "other.json"
    other.write_text('{"chat_template": "O"}')
    assert source_of(directory, tokenizer_config_path=str(other)) == "O"
    (directory / "chat_template.json").write_text('{"chat_template": "J"}')
    assert source_of(directory) == "J"
    (directory / "chat_template.jinja").write_text("F")
    assert source_of(directory) == "F"


@pytest.mark.parametrize(
    "config", ["{}", "not json", '{"chat_template": 5}', '{"chat_template": [{"name": "rag", "template": "R"}]}']
)
def test_no_template_starts_all_the_same(directory: Path, config: str) -> None:
    """Without a usable template the model is served, without chat."""
    (directory / "tokenizer_config.json").write_text(config)
    assert ServedModel.load(directory, "m", Settings()).chat_templates is None


def test_broken_template_starts_all_the_same(directory: Path) -> None:
    """A template that does not compile spoils only chat, which tells why."""
    (directory / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(TemplateFailed, match="Expected an expression"):
        source_of(directory)
