"""Whatever a model, its name, its adapters or an error say, the page at /ui shows it as text."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Browser, expect
from tgi_router.errors import ForeignTextError

from tests.surface.chat_page import ChatPage, says, scripted
from tests.surface.chat_states import TOOLS
from tgi_core.scheduler.types import GenerationFailed
from tgi_core.wire.types import Generation

CORPUS = (
    "<script>hit()</script>", "<SCRIPT SRC=//127.0.0.1:9/x.js></SCRIPT>", "<scr<script>ipt>hit()</scr</script>ipt>",
    "<img src=x onerror=hit()>", '<img src="x" onerror="hit()">', "<img/src/onerror=hit()>", "<IMG SRC=javascript:hit()>",
    "<svg onload=hit()>", "<svg><script>hit()</script></svg>", "<svg><animate onbegin=hit() attributeName=x dur=1s>",
    "<svg><use href=\"data:image/svg+xml,<svg id='x'><script>hit()</script></svg>#x\"/></svg>",
    "<iframe src=javascript:hit()></iframe>", "<iframe srcdoc='<script>parent.hit()</script>'></iframe>",
    "<object data=javascript:hit()></object>", "<embed src=javascript:hit()>", "<math href=javascript:hit()>click</math>",
    "<a href=javascript:hit()>click</a>", "[click](javascript:hit())", "![x](x){onerror=hit()}", "<body onload=hit()>",
    "<input autofocus onfocus=hit()>", "<details open ontoggle=hit()>", "<video><source onerror=hit()></video>",
    "<marquee onstart=hit()>", "<form action=javascript:hit()><button>go</button></form>", "<base href=//127.0.0.1:9/>",
    "<meta http-equiv=refresh content='0;url=javascript:hit()'>", "<link rel=stylesheet href=//127.0.0.1:9/x.css>",
    "<style>@import '//127.0.0.1:9/x.css'; * { display: none }</style>", "<div style='position:fixed;inset:0'>over</div>",
    "<template shadowrootmode=open><script>hit()</script></template>", "<noscript><p title='</noscript><img src=x onerror=hit()>'>",
    "--><img src=x onerror=hit()>", "]]><img src=x onerror=hit()>", "</textarea><img src=x onerror=hit()>",
    "</title><img src=x onerror=hit()>", "'\"><img src=x onerror=hit()>", "\"onmouseover=hit() x=\"", "${hit()}", "{{hit()}}",
    "&lt;img src=x onerror=hit()&gt;", "&#60;script&#62;hit()&#60;/script&#62;", "\\u003cscript\\u003ehit()\\u003c/script\\u003e",
    "<img src=x:gif onerror\n=\nhit()>", "<\u0000script>hit()</script>", "\u202e<script>hit()</script>", "<x contenteditable onblur=hit()>",
    "data: [DONE]", 'data: {"error": {"message": "forged"}}', "__proto__", "constructor",
)  # fmt: skip
"""What has run scripts, called other servers or covered pages elsewhere, each calling `hit` if it runs."""

ALLOWED = {"DIV": "block", "SPAN": "t"}
"""The elements of an answer, with the class that each has."""


def pieces(text: str, size: int = 4) -> list[str]:
    """A text in short pieces, so that no payload is a token of its own."""
    return [text[start : start + size] for start in range(0, len(text), size)]


class Watched(ChatPage):
    """A visit that notices when something runs or opens."""

    def __init__(self, browser: Browser, url: str) -> None:
        super().__init__(browser, url)
        self.opened: list[str] = []
        self.context.add_init_script("window.hits = 0; window.hit = () => { window.hits += 1; };")
        self.page.on("dialog", lambda dialog: (self.opened.append(dialog.message), dialog.dismiss()))
        self.context.on("page", lambda page: self.opened.append(page.url))
        self.url = url
        self.page.reload()

    def check(self) -> None:
        """Nothing ran, opened, complained or called anyone else."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert self.page.evaluate("window.hits") == 0 and self.opened == []
        assert self.page.evaluate("({}).polluted") is None
        assert self.page.locator("iframe, object, embed, svg script, body style, body link").count() == 0
        self.check_calls(self.url)


def address(served: object) -> str:
    """Where a scripted server is."""
    return str(served.client.base_url).rstrip("/")  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_answers(browser: Browser, size: int) -> None:
    """Every payload in an answer, whole or in pieces, is the text of its tokens, and their alternatives' too."""
    text = "\n".join(CORPUS)
    with scripted(lambda request: says(pieces(text, size), others=CORPUS[:8])) as (served, _):
        visit = Watched(browser, address(served))
        with visit.context:
            visit.ready().ask(CORPUS[3])
            shown = visit.text()
            assert shown == text.replace("\r", "\n")
            answer = visit.answer().locator(".text")
            found = answer.evaluate("(text) => [...text.querySelectorAll('*')].map((each) => [each.tagName, each.classList[0]])")
            assert {tuple(each) for each in found} <= set(ALLOWED.items())
            assert visit.page.locator(".turn.user .text").inner_text() == CORPUS[3]
            answer.locator(".t").first.click()
            rows = visit.page.locator("#alternatives tbody .token").all_inner_texts()
            assert CORPUS[0].replace(" ", "␣") in rows
            assert visit.page.locator("#alternatives img, #alternatives script").count() == 0
            visit.check()


def test_tool_calls(browser: Browser) -> None:
    """Arguments of calls, names of functions, and results are text."""
    name = "<img src=x onerror=hit()>"
    call = json.dumps({"name": name, "arguments": {f"k{place}": payload for place, payload in enumerate(CORPUS)}})
    tools = json.dumps([{**json.loads(TOOLS)[0], "name": name}])
    with scripted(lambda request: says(pieces(call, 7))) as (served, _):
        visit = Watched(browser, address(served))
        with visit.context:
            visit.ready().settings()
            visit.page.locator("#tools").fill(tools)
            visit.ask("call")
            card = visit.answer().locator(".call")
            expect(card.locator("h4")).to_have_text(f"Calls {name}")
            assert list(json.loads(card.locator("pre").inner_text()).values()) == list(CORPUS)
            visit.page.locator(".results textarea").fill("\n".join(CORPUS))
            visit.page.locator(".results button").click()
            assert visit.page.locator(".turn.tool .text").evaluate("(text) => text.childElementCount") == 0
            visit.check()


def test_names(browser: Browser) -> None:
    """The model's id and the adapters' names are text wherever they are shown, the page's title included."""
    usable = [payload for payload in CORPUS if payload.isprintable() and len(payload) < 200 and not payload.startswith("/")]
    for name in usable[::7]:
        with scripted(lambda request: says(["hi"]), name=name, adapters=usable) as (served, _):
            visit = Watched(browser, address(served))
            with visit.context:
                visit.ready().settings()
                assert visit.page.locator("#model").text_content() == name
                assert visit.page.locator("#empty-model").text_content() == name
                assert visit.page.locator("#adapter option").all_text_contents() == [f"none: {name}", *usable]
                visit.page.locator("#adapter").select_option(value=usable[3])
                visit.ask("hi")
                assert visit.answer().locator("h3").text_content() == usable[3]
                visit.check()


@pytest.mark.parametrize("before", [0, 3])
def test_errors(browser: Browser, before: int) -> None:
    """The message of an error, of a request or within a stream, is text."""
    message = " ".join(CORPUS)

    def fail(request: object) -> list[Generation | GenerationFailed]:
        return [*says(["a", "b", "c", "d"])[:before], GenerationFailed(message)]

    with scripted(fail) as (served, _):
        visit = Watched(browser, address(served))
        with visit.context:
            visit.ready().ask("hi")
            alert = visit.answer().get_by_role("alert")
            assert str(ForeignTextError(message)) in (alert.text_content() or "")  # without what looks like a path
            assert alert.evaluate("(found) => found.childElementCount") == 0
            visit.complaints = [each for each in visit.complaints if "status of 4" not in each and "status of 5" not in each]
            visit.check()


def test_the_policy_stops_what_the_page_would_let_through(browser: Browser) -> None:
    """Even a script of the page's own could not assign HTML, evaluate text, add inline handlers or call another server."""
    with scripted(lambda request: says(["hi"])) as (served, _):
        visit = ChatPage(browser, address(served))
        with visit.context:
            visit.ready()
            tried = """async () => {
                const failed = async (act) => { try { await act(); return false; } catch { return true; } };
                const [image, script] = [document.createElement("img"), document.createElement("script")];
                return [
                    await failed(() => image.setAttribute("onerror", "hit()")),
                    await failed(() => { script.text = "hit()"; }),
                    await failed(() => { script.src = "data:text/javascript,hit()"; }),
                    await failed(() => { document.body.innerHTML = "<b>x</b>"; }),
                    await failed(() => document.body.insertAdjacentHTML("beforeend", "<b>x</b>")),
                    await failed(() => document.write("x")),
                    await failed(() => fetch("http://127.0.0.1:9/")),
                ];
            }"""
            assert visit.page.evaluate(tried) == [True] * 7
