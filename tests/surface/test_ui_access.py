"""axe-core finds nothing wrong with the page at /ui, in any of its states, light or dark, on a phone or a laptop."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.clients.environments import HOME, install
from tests.surface.browsing import Scheme
from tests.surface.chat_states import SCHEMES, SIZES, STATES, in_state

RUN = """async () => {
    const { violations, passes, incomplete } = await axe.run(document, { resultTypes: ["violations", "incomplete"] });
    const told = (found) => found.map((rule) => [rule.id, rule.help, ...rule.nodes.map((node) => node.html.slice(0, 200))]);
    return { violations: told(violations), incomplete: told(incomplete), passes: passes.length };
}"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which npm has fetched; the test is skipped without npm or its registry."""
    try:
        install("axe")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no axe-core here: {error}")
    return (Path(HOME) / "axe" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser: Browser, axe: str, state: str, scheme: Scheme, size: str) -> None:
    """No rule of axe-core is broken, and nothing is wider than the screen."""
    with in_state(browser, state, scheme, size) as visit:
        visit.page.evaluate(axe)
        found = visit.page.evaluate(RUN)
        assert found["violations"] == [] and found["passes"] > 10
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
