"""The page at /ui in a browser: on the demo model, and on models that say what a test needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.router.scripted import HOLD
from tests.serve.process import served
from tests.surface.browsing import SECONDS
from tests.surface.chat_page import ChatPage, says, scripted, words
from tests.surface.chat_states import CALL, SHORT, TOOLS
from tgi_core.backend import Sampling
from tgi_core.scheduler.types import GenerationFailed, GenerationRequest, Overloaded
from tgi_core.wire.types import Generation

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """The demo model on the CPU."""
    with served("--backend", "cpu") as server:
        yield server.url


class Talk:
    """A page and the scripted server behind it. `bodies` are the chat completions that the page asked for."""

    def __init__(self, stack: ExitStack, browser: Browser, script: Any, **settings: Any) -> None:
        server, self.generator = stack.enter_context(scripted(script, **settings))
        self.url = str(server.client.base_url).rstrip("/")
        self.visit = ChatPage(browser, self.url)
        stack.enter_context(self.visit.context)
        self.page = self.visit.page
        self.bodies: list[dict[str, Any]] = []
        self.page.on("request", lambda request: request.method == "POST" and self.bodies.append(json.loads(request.post_data)))


@pytest.fixture
def talk(browser: Browser) -> Iterator[Any]:
    """Opens pages on scripted servers."""
    with ExitStack() as stack:
        yield lambda script, **settings: Talk(stack, browser, script, **settings)


def short(request: GenerationRequest) -> list[Generation]:
    """Always the same answer."""
    return says(words(SHORT))


def test_a_chat_with_the_demo_model(demo: str, browser: Browser) -> None:
    """An answer arrives with coloured tokens; what it says of its speed is there, and the live figures count its tokens."""
    visit = ChatPage(browser, demo, scheme="dark")
    with visit.context:
        visit.ready().ask(QUESTION)
        assert "Paris" in visit.text()
        answer = visit.answer()
        assert answer.locator(".text .t").count() > 3
        expect(answer.locator(".stats")).to_have_text(re.compile(r"^\d+ tokens · first after [\d.]+ m?s"))
        expect(visit.page.locator(".figure", has_text="First token").locator(".value")).to_have_text(re.compile(r"\d m?s$"))
        visit.check_calls(demo)


def test_an_alternative_is_continued(demo: str, browser: Browser) -> None:
    """Choosing an alternative keeps the text before it and has the model write the rest again."""
    visit = ChatPage(browser, demo)
    with visit.context:
        visit.ready().settings()
        visit.page.locator("#temperature").fill("0")
        visit.ask(QUESTION)
        before = visit.text()
        visit.answer().locator(".text .t").nth(3).click()
        chosen = visit.page.locator("#alternatives button", has_text="Continue").first
        name = (chosen.get_attribute("aria-label") or "").removeprefix("Continue with ")
        chosen.click()
        expect(visit.page.locator("#messages > .assistant")).to_have_count(1)
        pieces = visit.answer().locator(".text .t").all_inner_texts()
        after = visit.text()
        assert before != after and after.startswith("".join(pieces[:3]))
        assert pieces[3].strip() == name.replace("␣", " ").strip()
        visit.check_calls(demo)


def test_a_json_schema_is_kept(demo: str, browser: Browser) -> None:
    """The schema in its box constrains the answer; text that is no JSON is refused where it stands, and nothing is sent."""
    visit = ChatPage(browser, demo)
    with visit.context:
        visit.ready().settings()
        page = visit.page
        page.locator("#max_tokens").fill("60")
        page.locator("#schema").fill('{"type": ')
        visit.ask(QUESTION)
        expect(page.locator("#schema")).to_be_focused()
        expect(page.locator("#schema-error")).to_contain_text("not JSON")
        assert page.locator("#schema").get_attribute("aria-invalid") == "true"
        assert page.locator("#prompt").input_value() == QUESTION and not page.locator("#messages > *").count()
        page.locator("#schema").fill('{"enum": ["red", "green"]}')
        visit.ask(QUESTION)
        assert json.loads(visit.text()) in ("red", "green")


def test_stop(talk: Any) -> None:
    """Stop ends the answer on the server, too; what was written stays, and the next message continues from it."""
    it = talk(lambda request: [*says(words(SHORT))[:5], HOLD])
    it.visit.ready().ask("one")
    it.page.locator(".assistant .t").nth(4).wait_for()
    assert not it.page.locator("#send").is_visible()
    it.page.locator("#stop").click()
    first = it.generator.submitted.get(timeout=SECONDS)
    assert it.generator.cancelled.get(timeout=SECONDS) is first
    said = "".join(words(SHORT)[:5])
    assert it.visit.text() == said
    expect(it.visit.answer().locator(".stats")).to_contain_text("stopped")
    it.visit.ask("two")
    it.page.locator(".assistant").nth(1).locator(".t").nth(4).wait_for()
    it.page.keyboard.press("Escape")
    expect(it.page.locator(".stats")).to_have_count(2)
    assert [(each["role"], each["content"]) for each in it.bodies[1]["messages"]] == [
        ("user", "one"), ("assistant", said), ("user", "two"),
    ]  # fmt: skip


def test_settings_reach_the_request(talk: Any) -> None:
    """Each field is a field of the request; an empty one is left out. A reload keeps them, and forgets the chat."""
    it = talk(short, adapters=("poet", "org/cook"))
    values = {
        "temperature": "0.5", "max_tokens": "300", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "seed": "7",
        "repetition_penalty": "1.1", "frequency_penalty": "0.2", "presence_penalty": "-0.3", "top_logprobs": "3",
    }  # fmt: skip
    it.visit.ready().ask("plain")
    it.visit.answer()
    it.visit.settings()
    for name, value in values.items():
        it.page.locator(f"#{name}").fill(value)
    it.page.locator("#system").fill("Be brief.")
    it.page.locator("#stop-strings").fill("END\n\n###")
    it.page.locator("#adapter").select_option("org/cook")
    it.page.reload()
    it.visit.ready().ask("set")
    it.visit.answer()
    plain, given = it.bodies
    always = {"stream", "stream_options", "messages", "logprobs", "top_logprobs"}
    assert set(plain) == always and plain["top_logprobs"] == 5
    assert {name: given[name] for name in values} == {name: float(value) for name, value in values.items()}
    assert (given["stop"], given["model"]) == (["END", "###"], "org/cook")
    assert given["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "set"}]
    requests = [it.generator.submitted.get(timeout=SECONDS) for _ in range(2)]
    assert [each.adapter for each in requests] == [None, "org/cook"]
    sampling: Sampling = requests[1].sampling
    assert (sampling.top_k, sampling.seed, round(sampling.temperature, 6)) == (40, 7, 0.5)
    assert it.visit.complaints == []


def test_without_probabilities(talk: Any) -> None:
    """Where they are switched off, none are asked for, and the text is plain."""
    it = talk(short)
    it.visit.ready().settings()
    it.page.locator("#logprobs").uncheck()
    it.visit.ask("hi")
    assert it.visit.text() == SHORT
    assert not it.visit.answer().locator(".t").count()
    assert not {"logprobs", "top_logprobs"} & set(it.bodies[0])


def test_tools(talk: Any) -> None:
    """A call is shown with its arguments; the result that one gives to it is sent with the call's id, and the model goes on."""
    it = talk(lambda request: says(words(CALL)) if len(it.bodies) == 1 else short(request))
    it.visit.ready().settings()
    it.page.locator("#tools").fill(TOOLS)
    it.page.locator("#tool-choice").select_option("required")
    it.visit.ask("Weather?")
    call = it.visit.answer().locator(".call")
    expect(call.locator("h4")).to_have_text("Calls weather")
    assert json.loads(call.locator("pre").inner_text()) == {"city": "Paris", "days": [1, 2]}
    assert it.bodies[0]["tools"][0]["function"]["name"] == "weather" and it.bodies[0]["tool_choice"] == "required"
    it.page.get_by_label("Result of weather").fill("sunny")
    it.page.locator(".results button").click()
    assert it.visit.text() == SHORT
    question, called, result = it.bodies[1]["messages"]
    assert question["content"] == "Weather?" and called["content"] is None
    assert result == {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "sunny"}


def test_errors_are_shown_and_can_be_tried_again(talk: Any) -> None:
    """A request that is refused, and one that fails on the way, say why; trying again sends the same messages."""
    plays = iter([[Overloaded("busy")], [*says(words(SHORT))[:4], GenerationFailed("out of memory")], says(words(SHORT))])
    it = talk(lambda request: next(plays))
    it.visit.ready().ask("hi")
    expect(it.visit.answer().get_by_role("alert")).to_contain_text("overloaded")
    it.page.get_by_role("button", name="Try again").click()
    expect(it.page.locator(".assistant").get_by_role("alert")).to_contain_text("out of memory")
    assert it.visit.text() == "".join(words(SHORT)[:4])
    it.page.get_by_role("button", name="Try again").click()
    expect(it.page.locator(".assistant .text")).to_have_text(SHORT)
    assert [each["messages"] for each in it.bodies] == [[{"role": "user", "content": "hi"}]] * 3


def test_the_key(talk: Any) -> None:
    """The page asks for the key, says when it is wrong, keeps it for the tab, and forgets it when told to."""
    it = talk(short, api_key="secret")
    dialog = it.page.locator("#key-dialog")
    for wrong in ("", "Wrong"):
        expect(dialog).to_be_visible()
        expect(dialog.locator("#key-reason")).to_have_text("This server requires an API key.")
        dialog.locator("#key").fill(wrong)
        dialog.locator("#key").press("Enter")
    expect(dialog.locator("#key-reason")).to_have_text("The server does not accept this API key.")
    dialog.locator("#key").fill("secret")
    dialog.get_by_role("button", name="Use this key").click()
    it.visit.ready()
    it.page.reload()
    it.visit.ready().ask("hi")
    assert it.visit.text() == SHORT
    assert it.page.evaluate("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
    it.visit.settings()
    it.page.locator("#change-key").click()
    dialog.get_by_role("button", name="Forget the key").click()
    expect(dialog.locator("#key-reason")).to_have_text("This server requires an API key.")


def test_the_keyboard_alone(talk: Any) -> None:
    """A chat, its tokens, their alternatives and the settings are used without a mouse, and focus goes where it came from."""
    it = talk(short)
    it.visit.ready()
    it.page.keyboard.press("Tab")
    expect(it.page.locator(".skip")).to_be_focused()
    it.page.keyboard.press("Enter")
    expect(it.page.locator("#prompt")).to_be_focused()
    it.page.keyboard.type("one")
    it.page.keyboard.press("Shift+Enter")
    it.page.keyboard.type("two")
    it.page.keyboard.press("Enter")
    text = it.visit.answer().locator(".text")
    assert it.bodies[0]["messages"][0]["content"] == "one\ntwo"
    text.focus()
    for _ in range(2):
        it.page.keyboard.press("ArrowRight")
    second = words(SHORT)[1]
    expect(it.page.locator(".t.current")).to_have_text(second)
    expect(it.page.get_by_role("status").last).to_contain_text(second.strip())
    it.page.keyboard.press("Enter")
    window = it.page.get_by_role("dialog")
    expect(window).to_contain_text(second.strip())
    it.page.keyboard.press("ArrowRight")
    expect(it.page.locator(".t.current")).to_have_text(words(SHORT)[2])
    it.page.keyboard.press("Escape")
    expect(window).to_be_hidden()
    expect(text).to_be_focused()
    assert it.visit.complaints == []


def test_switching_the_appearance(talk: Any) -> None:
    """A chosen appearance wins over the system's and outlives a reload."""
    it = talk(short)
    it.visit.ready().settings()
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = it.page.evaluate(ground)
    it.page.locator("#theme").select_option("dark")
    dark = it.page.evaluate(ground)
    assert light == "rgb(255, 255, 255)" and dark != light
    it.page.reload()
    assert it.page.evaluate(ground) == dark


def test_a_new_chat(talk: Any) -> None:
    """A new chat forgets the messages of the last."""
    it = talk(short)
    it.visit.ready().ask("one")
    it.visit.answer()
    it.page.locator("#new-chat").click()
    expect(it.page.locator("#empty")).to_be_visible()
    it.visit.ask("two")
    it.visit.answer()
    assert [message["content"] for message in it.bodies[1]["messages"]] == ["two"]
