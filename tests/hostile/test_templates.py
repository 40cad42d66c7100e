"""Templates come from the model's files alone, and are bounded even so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tgi_router import ServedModel
from tgi_router.templates import ChatTemplates

from tests.hostile.server import ServerUnderTest, opened
from tests.hostile.watch import Canary, Watch

JINJA = [
    "{{ 7 * 7 }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{# comment #}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}", "{{ lipsum.__globals__['os'].system('id') }}", "{% raw %}", "{% endraw %}",
    "{{ ('a' * 10**9) | length }}", "{{ messages }}", "{% include '/etc/passwd' %}", "{{ raise_exception('x') }}", "{{", "}}", "{%", "%}",
    "{{ bos_token }}", "{{ self.__init__ }}", "{{ ''['format'].__self__ }}", "${7*7}", "<%= 7*7 %>", "#{7*7}", "{{'{'}}{7*7}",
]  # fmt: skip
REFUSED: list[tuple[str, Any]] = [
    ("chat_template", "{{ 7 * 7 }}"), ("chat_template", "{% for i in range(10**9) %}{% endfor %}"), ("chat_template", {"default": "x"}),
    ("add_generation_prompt", False), ("documents", [{"text": "{{ 7 * 7 }}"}]), ("add_special_tokens", True),
]  # fmt: skip
WITHOUT_EFFECT: list[tuple[str, Any]] = [
    ("chat_template_kwargs", {"chat_template": "{{ 7 * 7 }}"}), ("chat_template_kwargs", {"tokenize": True}),
    ("chat_template_kwargs", {"messages": [], "tools": [], "add_generation_prompt": False, "bos_token": "x"}),
    ("chat_template_kwargs", {str(number): "x" for number in range(5000)}), ("template", "x"), ("tokenize", True),
    ("continue_final_message", True), ("mm_processor_kwargs", {"code_revision": "x"}), ("bos_token", "x"), ("tokenizer_config", {}),
]  # fmt: skip
PLAIN = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{place}-{name}" for place, (name, _) in enumerate(REFUSED)])
def test_requests_bring_no_templates(instance: ServerUnderTest, field: str, value: Any) -> None:
    """Fields by which other servers take templates are refused by name, without a step, and templates see none of a message's."""
    for path in ("/chat_tokenize", "/v1/chat/completions"):
        answer = instance.refuses(path, {**PLAIN, field: value})
        assert answer.status_code == 422 and f"`{field}` is not supported" in answer.text
    check_message(instance, field, value)


@pytest.mark.parametrize(
    ("field", "value"), WITHOUT_EFFECT, ids=[f"{place}-{name}" for place, (name, _) in enumerate(WITHOUT_EFFECT)]
)
def test_what_templates_are_told(instance: ServerUnderTest, field: str, value: Any) -> None:
    """Fields that tell other servers' templates something beyond what they may be told change no prompt on any route."""
    wanted = instance.post("/chat_tokenize", PLAIN).json()
    assert instance.post("/chat_tokenize", {**PLAIN, field: value}).json() == wanted
    answers = [instance.post("/v1/chat/completions", {**body, "temperature": 0}) for body in (PLAIN, {**PLAIN, field: value})]
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    check_message(instance, field, value)


def check_message(instance: ServerUnderTest, field: str, value: Any) -> None:
    """A message's own field of that name changes no prompt."""
    message = {"role": "user", "content": "Hi", field: value}
    wanted = instance.post("/chat_tokenize", PLAIN).json()
    assert instance.post("/chat_tokenize", {**PLAIN, "messages": [message]}).json() == wanted


@pytest.mark.parametrize("text", JINJA)
def test_templates_in_texts_are_text(instance: ServerUnderTest, text: str) -> None:
    """What looks like a template is text, wherever it stands; in a role it is a stranger's, whom the template may refuse."""
    for message in (
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "system", "content": text},
    ):
        answer = instance.post("/chat_tokenize", {**PLAIN, "messages": [message]})
        assert text in answer.json()["templated_text"]
    tool = {"type": "function", "function": {"name": text, "description": text, "parameters": {"description": text}}}
    prompt = instance.post("/chat_tokenize", {**PLAIN, "tools": [tool], "tool_prompt": text}).json()["templated_text"]
    assert prompt.count(text) >= 2 and "uid=" not in prompt
    calls = [{"id": text, "type": "function", "function": {"name": text, "arguments": text}}]
    past = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": text, "tool_call_id": text, "name": text}]
    assert text in instance.post("/chat_tokenize", {**PLAIN, "messages": past}).json()["templated_text"]
    assert instance.refuses("/chat_tokenize", {**PLAIN, "messages": [{"role": text, "content": "x"}]}).status_code == 422


SLOW = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "one operation": "{{ 10 ** (10 ** 9) }}",
    "memory": "{{ ('a' * 10 ** 10) | length }}",
    "much text": "{% for i in range(99999) %}{% for j in range(999) %}aaaaaaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "files": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_models_own_template_is_bounded(model: ServedModel, watch: Watch, kind: str) -> None:
    """Four conversations at once with a bad template: each a template error, while other requests are answered; no step is run."""
    changed = ServedModel(model.name, None, model.tokenizer, ChatTemplates({"default": SLOW[kind]}))
    with opened(changed, watch, {}) as instance, ThreadPoolExecutor(2) as pool:
        before = len(instance.shard.steps)
        asked = [pool.submit(instance.client.post, "/v1/chat/completions", json=PLAIN) for _ in range(2)]
        assert instance.client.post("/tokenize", json={"inputs": "Hi"}).status_code == 200
        for each in asked:
            answer = each.result()
            assert answer.status_code == 422 and answer.json()["error_type"] == "template_error", answer.text
        assert len(instance.shard.steps) == before
        instance.check_unharmed()


def test_templates_reach_no_network(model: ServedModel, watch: Watch, canary: Canary) -> None:
    """A model's template has no way to the network."""
    source = f"{{% include 'http://127.0.0.1:{canary.port}/' %}}"
    changed = ServedModel(model.name, None, model.tokenizer, ChatTemplates({"default": source}))
    with opened(changed, watch, {}) as instance, watch.watching(instance.served.address):
        instance.refuses("/v1/chat/completions", PLAIN)
        assert watch.connections == []
