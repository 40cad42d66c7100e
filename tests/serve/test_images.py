"""A model that sees images, served as a user would: answers, prefix hits, damaged images among others, and a killed shard."""

from __future__ import annotations

import os
import re
import signal
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.engine.image_models import image, save_model
from tests.media.pictures import encoded, hostile
from tests.serve.process import ServerProcess, served
from tests.soak.kills import shards
from tests.waiting import wait_until

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}\n{% endfor %}"
)


@contextmanager
def served_family(
    family: str, folders: pytest.TempPathFactory, *flags: str, placeholder: str = "<image>"
) -> Iterator[ServerProcess]:
    """`tgi serve` on a tiny model of a family, on the CPU in float32."""
    directory = save_model(family, folders.mktemp("images") / family)
    (directory / "chat_template.jinja").write_text(TEMPLATE.replace("<image>", placeholder))
    with served(str(directory), "--backend", "cpu", "--dtype", "float32", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a tiny model."""
    with served_family("llava_next", tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One whose images run whole, in steps that hold only a few of them."""
    limit = ("--max-batch-prefill-tokens", "40")
    with served_family("gemma3", tmp_path_factory, *limit, placeholder="<start_of_image>") as server:
        yield server


@pytest.fixture(scope="module")
def paligemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One whose prompts run whole, with memory for few rows."""
    limits = ("--max-batch-prefill-tokens", "90", "--max-total-tokens", "256", "--kv-cache-tokens", "960")
    with served_family("paligemma", tmp_path_factory, *limits) as server:
        yield server


@pytest.fixture(scope="module")
def mllama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One whose layers look at images."""
    limit = ("--max-batch-prefill-tokens", "40")
    with served_family("mllama", tmp_path_factory, *limit, placeholder="<|image|>") as server:
        yield server


def url(data: bytes) -> str:
    """A `data:` URL."""
    return f"data:image/png;base64,{b64encode(data).decode()}"


def ask(server: ServerProcess, words: str, *images: bytes, **more: Any) -> httpx.Response:
    """A chat with images before the text."""
    parts = [*({"type": "image_url", "image_url": {"url": url(data)}} for data in images), {"type": "text", "text": words}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 30, "temperature": 0, "ignore_eos": True, **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def said(answer: httpx.Response) -> str:
    """Its text."""
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def cached(answer: httpx.Response) -> int:
    """How many tokens of the prompt were found in the cache."""
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_prefix_hits_across_images(server: ServerProcess) -> None:
    """The same image is found in the cache, another one is not, and an answer is the same either way."""
    one, two = encoded(image(1, 50, 50)), encoded(image(2, 50, 50))
    first, again, other = (ask(server, "What is it?", each) for each in (one, one, two))
    assert said(first) == said(again) != said(other)
    assert cached(first) == 0 and cached(again) > 16 and cached(other) < 16


def test_images_that_run_whole(gemma: ServerProcess) -> None:
    """Many requests with images, in chunks, and without, get the answers that each gets alone; the same image is found in the cache."""
    pictures = [encoded(image(seed)) for seed in range(4)]
    words = [f"Number {n}, " + "and so on, " * n for n in range(4)]
    alone = [said(ask(gemma, words[n], *pictures[:n], max_tokens=60)) for n in range(4)]
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, gemma, words[n % 4], *pictures[: n % 4], max_tokens=60) for n in range(24)]
        answers = [each.result() for each in asked]
    assert [said(each) for each in answers] == [alone[n % 4] for n in range(24)]
    assert cached(answers[-1]) >= 16
    assert said(ask(gemma, words[1], pictures[1], max_tokens=60)) != alone[1]


def test_prompts_that_run_whole(paligemma: ServerProcess) -> None:
    """Many requests with images and without get the answers that each gets alone, also if rows are preempted and the shard is killed while
    they run. A prompt is found in the cache as a whole, and one that does not fit in a step is refused."""
    pictures = [encoded(image(seed)) for seed in range(4)]
    alone = [said(ask(paligemma, f"Number {n}", *pictures[:n], max_tokens=120)) for n in range(4)]
    again, longer = (ask(paligemma, words, *pictures[:3], max_tokens=5) for words in ("Number 3", "Number 3, longer"))
    assert cached(again) >= 48 and cached(longer) == 0
    long = ask(paligemma, "and so on, " * 40)
    assert long.status_code == 422 and "must have less than 90 tokens" in long.json()["error"]["message"]
    [shard] = shards(paligemma.child.pid)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, paligemma, f"Number {n % 4}", *pictures[: n % 4], max_tokens=120) for n in range(24)]
        wait_until(lambda: re.search(r"^tgi_batch_current_size [1-9]", metrics(paligemma), re.MULTILINE))
        os.kill(shard, signal.SIGKILL)
        assert [said(each.result()) for each in asked] == [alone[n % 4] for n in range(24)]
    assert shard not in shards(paligemma.child.pid)


def metrics(server: ServerProcess) -> str:
    """The text of its metrics."""
    return httpx.get(f"{server.url}/metrics").text


def test_images_that_layers_look_at(mllama: ServerProcess) -> None:
    """Many requests with images, in chunks, and without, get the answers that each gets alone, also if the shard is killed while they run.
    A prefix is found in the cache only if all images of the prompt are the same, since also tokens before them attend to them."""
    pictures = [encoded(image(seed, 40 + 20 * seed, 33)) for seed in range(4)]
    words = [f"Number {n}, " + "and so on, " * (n + 1) for n in range(4)]
    alone = [said(ask(mllama, words[n], *pictures[:n], max_tokens=60)) for n in range(4)]
    longer, other = (ask(mllama, words[2] + "!", *shown) for shown in (pictures[:2], pictures[1:3]))
    assert cached(longer) >= 16 and cached(other) == 0
    chosen = ask(mllama, "Choose", pictures[0], response_format={"type": "regex", "value": "[ab]{3}"}, ignore_eos=False)
    assert re.fullmatch("[ab]{3}", said(chosen))
    [shard] = shards(mllama.child.pid)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, mllama, words[n % 4], *pictures[: n % 4], max_tokens=60) for n in range(24)]
        wait_until(lambda: re.search(r"^tgi_batch_current_size [1-9]", metrics(mllama), re.MULTILINE))
        os.kill(shard, signal.SIGKILL)
        assert [said(each.result()) for each in asked] == [alone[n % 4] for n in range(24)]
    assert shard not in shards(mllama.child.pid)


def test_both_forms_give_the_same_tokens(server: ServerProcess) -> None:
    """A chat, and Markdown in a prompt that is the rendered chat."""
    one = encoded(image(3))
    chat = said(ask(server, "Well?", one))
    inputs = f"user: ![]({url(one)})Well?\n"
    body = {"inputs": inputs, "parameters": {"max_new_tokens": 30, "details": True, "return_full_text": False}}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=120).json()
    assert answer["details"]["generated_tokens"] > 0 and chat


def test_hostile_images_change_no_other_answer(server: ServerProcess) -> None:
    """Hostile images of more than forty kinds among sound requests: one clear 422 each, and every other answer is what it was."""
    pictures = [encoded(image(seed, 45, 30)) for seed in range(4)]
    alone = [said(ask(server, f"Number {n}", picture)) for n, picture in enumerate(pictures)]
    with ThreadPoolExecutor(8) as pool:
        bad = [pool.submit(ask, server, "Bad", data) for _, data in hostile()]
        good = [pool.submit(ask, server, f"Number {n % 4}", pictures[n % 4]) for n in range(24)]
        assert [said(each.result()) for each in good] == [alone[n % 4] for n in range(24)]
        answers = [each.result() for each in bad]
    assert {each.status_code for each in answers} == {422}
    assert all("image 1" in each.json()["error"]["message"] for each in answers)


def test_a_damaged_image_behind_a_sound_one(server: ServerProcess) -> None:
    """One clear 422 that names it, before any step, in chats, streams and Markdown; rows that decode meanwhile make the tokens that they
    make alone."""
    damaged = [data for name, data in hostile() if name.startswith(("half", "the beginning"))]
    sound = encoded(image(5, 50, 40))
    alone, words = said(ask(server, "Go on", sound, max_tokens=200)), "Both"
    before = prefills(server)
    streamed = [ask(server, words, sound, data, stream=True) for data in damaged[:2]]
    body = {"inputs": f"![]({url(sound)})![]({url(damaged[0])})Both?", "parameters": {"max_new_tokens": 5}}
    native = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert prefills(server) == before > 0 and native.status_code == 422 and "image 2" in native.json()["error"]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask, server, "Go on", sound, max_tokens=200) for _ in range(3)]
        refused = [*streamed, *pool.map(lambda data: ask(server, words, sound, data), damaged)]
        assert [said(each.result()) for each in running] == [alone] * 3
    assert {each.status_code for each in refused} == {422}
    assert all("image 2" in each.json()["error"]["message"] for each in refused)


def prefills(server: ServerProcess) -> float:
    """Steps with new prompts so far."""
    found = re.search(r'^tgi_batch_inference_count\{method="prefill"\} (\S+)', metrics(server), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


@pytest.mark.timeout(300)
def test_a_killed_shard(server: ServerProcess) -> None:
    """Requests with images go on after kill -9 of the shard, with the same tokens, though the new shard has none of their features."""
    pictures = [encoded(image(seed, 33, 61)) for seed in range(8)]
    alone = [said(ask(server, f"Number {n}", picture, max_tokens=300)) for n, picture in enumerate(pictures)]
    [shard] = shards(server.child.pid)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, server, f"Number {n}", picture, max_tokens=300) for n, picture in enumerate(pictures)]
        wait_until(lambda: re.search(r"^tgi_batch_current_size [1-9]", metrics(server), re.MULTILINE))
        os.kill(shard, signal.SIGKILL)
        assert [said(each.result()) for each in asked] == alone
    assert shard not in shards(server.child.pid)
