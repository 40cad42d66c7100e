"""Chat templates: where they come from and how they render."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tgi_router import ChatTemplates, ServedModel
from tgi_router.errors import TemplateFailed
from tgi_router.openai_bodies import Message, Tool
from tgi_router.template_pool import TemplatePool
from tgi_router.templates import Conversation

from tests.router.conftest import Serve
from tests.router.serving import read_until
from tgi_core.config import Settings
from tgi_core.model_files import DEMO

LONGEST = 100_000
PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def render(source: str | dict[str, str], *messages: dict[str, Any], **more: Any) -> str:
    """The prompt of some messages."""
    sources = source if isinstance(source, dict) else {"default": source}
    given = [Message.model_validate(message) for message in messages]
    return rendered(ChatTemplates(sources, "<s>", "</s>"), Conversation(given, **more))


def rendered(templates: ChatTemplates, conversation: Conversation) -> str:
    """The prompt, from a process of its own."""

    async def run() -> str:
        pool = TemplatePool(1)
        try:
            return (await pool.render(templates.job(conversation, LONGEST).to_json())).text
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
    """Parts become one string, tool calls their JSON."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "![](u)"}, {"type": "text", "text": "b"}]
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


TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}})
]
ASKS = user("x")
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
ANSWERED = {"role": "tool", "tool_call_id": "1", "name": "f", "content": "12"}


def test_template_for_tools() -> None:
    """A model's template for tools is used where there are tools; TGI knows the default only."""
    sources = {"default": "D{{ tools }}", "tool_use": "T{{ tools[0].function.name }}"}
    assert render(sources, ASKS) == "DNone"
    assert render(sources, ASKS, tools=TOOLS) == "Tf"
    assert render({"default": "D"}, ASKS, tools=TOOLS) == "D"
    assert render(sources, ASKS, tools=TOOLS, strict=True).startswith("D[")


def test_tools_in_templates() -> None:
    """A template that shows tools gets them as transformers gives them, or as TGI does; one that does not finds them in the message."""
    shows = "{{ tools | tojson }}{{ messages[-1].content }}"
    ours = '[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]'
    assert render(shows, ASKS, tools=TOOLS) == f"{ours}x"
    assert render(shows, ASKS, tools=TOOLS, note="N") == f"{ours}x\n---\nN"
    theirs = '[{"type": "function", "function": {"description": "d", "name": "f", "arguments": "{\\"type\\":\\"object\\"}"}}]'
    assert render(shows, ASKS, tools=TOOLS, strict=True) == f"{theirs}x"
    plain = render(PLAIN, ASKS, tools=TOOLS, note="N")
    assert plain == f"[user:x\n---\n{ours.replace(': ', ':').replace(', ', ',')}\nN]>"


def test_past_calls_in_templates() -> None:
    """A template that shows past calls gets them with their arguments as objects; others, and TGI's, get them as text."""
    call = "{{ m.tool_calls[0].function.arguments.a }}"
    shows = f"{{% for m in messages %}}{{% if m.tool_calls %}}{call}{{% else %}}{{{{ m.name }}}}{{% endif %}}{{% endfor %}}"
    assert render(shows, CALLED, ANSWERED) == "1f"
    assert render(shows, CALLED, ANSWERED, strict=True) == ""
    assert '"arguments":"{\\"a\\": 1}"' in render(PLAIN, CALLED, ANSWERED)


def job(source: str) -> bytes:
    """What a worker is told to render a template for a conversation of one message."""
    conversation = Conversation([Message.model_validate(ASKS)])
    return ChatTemplates({"default": source}, "<s>", "</s>").job(conversation, LONGEST).to_json()


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (LOOP, "the template took too long"),
        ("{{ 10 ** (10 ** 9) }}", "the template took too long"),
        ("{{ ('a' * 10 ** 10) | length }}", "the template needs too much memory"),
        ("{% for i in range(99999) %}aaaaaaaaaa{% endfor %}", "the prompt is longer than 100000 characters"),
        ("{{ raise_exception('a' * 10 ** 6) }}", "aaa"),
    ],
)
def test_limits(source: str, text: str) -> None:
    """Time, memory and length are bounded, inside single operations too; the next rendering is as good as any."""

    async def run() -> None:
        pool = TemplatePool(1)
        try:
            assert (await pool.render(job("warm"))).text == "warm"
            with pytest.raises(TemplateFailed) as caught:
                await pool.render(job(source))
            assert str(caught.value).startswith(f"Template error: {text}") and len(str(caught.value)) < 400
            assert (await pool.render(job("{{ bos_token }}"))).text == "<s>"
        finally:
            pool.close()

    asyncio.run(run())


def test_a_slow_template_holds_up_nothing_else(serve: Serve) -> None:
    """While a template runs away other requests are answered."""
    served, _ = serve(changes={"chat_templates": ChatTemplates({"default": LOOP})})
    with served.send("/v1/chat/completions", '{"messages":[{"role":"user","content":"x"}]}') as connection:
        assert served.client.post("/generate", json={"inputs": "Hi"}).status_code == 200
        assert b" 422 " in read_until(connection, b"too long")
    assert served.client.get("/health").status_code == 200


def test_half_characters_are_refused() -> None:
    """A template that cuts characters in half makes no prompt."""
    with pytest.raises(TemplateFailed, match="not Unicode"):
        render("{{ '\\ud800' }}", ASKS)
