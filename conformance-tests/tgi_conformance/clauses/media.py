"""Images in prompts: each takes the place of its own tokens, in whatever steps they run, and fails no request but its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tgi_conformance.calls import NOTHING, Decode, Encode, Prefill, Ref
from tgi_conformance.clause import clause
from tgi_conformance.features import EXTENSIONS
from tgi_conformance.golden import Case, Golden
from tgi_conformance.image_rules import ImageRules, ItemForm, read_form, written
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.session_setup import Setup
from tgi_conformance.target import prefix_plan
from tgi_conformance.verdict import DoesNotApply, Level, NotReached, Violation
from tgi_core.backend import BackendError, Feature, InvalidRequest, Mixing, Request, WarmupPlan

_ALONE = ("greedy-one", "greedy-begins", "greedy-ends")
_SEVERAL = ("greedy-two", "greedy-turned", "greedy-other", "greedy-twice", "greedy-three", "greedy-side-by-side")


def seeing(scene: Scene, plan: WarmupPlan | None = None, *, alone: bool = False) -> Iterator[tuple[Golden, Stage]]:
    """Yield each golden checkpoint whose sessions take images, with a session on it. With `alone`, rows are compared with what they make
    alone, not with its transcripts. Raises NotReached."""
    if not scene.seeing:
        raise NotReached("only a model of the user's own takes images, and the suite has none for it")
    for name in scene.seeing:
        play = scene.play(Setup(plan, golden=name, alone=alone))
        yield Golden.load(name), Stage(play, scene.seed)


def rules_of(stage: Stage) -> ImageRules:
    """Return the rules of images in a session that takes some. Raises Violation."""
    if stage.play.oracle.images is None:
        raise Violation("constant", "sessions on one checkpoint do not all declare media")
    return stage.play.oracle.images


def cases_of(golden: Golden, ids: Iterable[str]) -> list[Case]:
    """Return the named cases, as far as a checkpoint has them."""
    by_id = {case.id: case for case in golden.cases}
    return [by_id[id] for id in ids if id in by_id]


def asking(stage: Stage, case: Case, take: int | None = None, known: int = 0) -> Request:
    """Build the request of a case, with everything that a row can return, after the first `known` tokens of its answer."""
    tokens = (*case.prompt, *case.tokens[:known])
    return stage.request(tokens, case.sampling, take, want=stage.wants, media=case.media, prompt_len=len(case.prompt))


def outlined(stage: Stage, case: Case) -> Request:
    """Build the request of a case without blocks."""
    return replace(stage.outline(case.prompt), media=case.media)


def finish(stage: Stage, batch: Ref, id: int, chunk: int) -> Ref:
    """Run the rest of a prompt in chunks, none of which cuts an image that must run whole, while other rows go on."""
    while stage.row(id).owed:
        row = stage.row(id)
        end = rules_of(stage).uncut(row.request, row.done + min(chunk, row.owed))
        mates = [mate for mate in stage.play.oracle.batches[batch] if not mate.owed]
        batch = stage.decode(batch, grants=[stage.grant(row, end - row.done), *(stage.grant(mate) for mate in mates)])
    return batch


def run(stage: Stage, cases: Sequence[Case]) -> None:
    """Run cases one after the other."""
    for case in cases:
        stage.filter(stage.decode(stage.start(asking(stage, case)), steps=len(case.tokens) - 1), ())


@clause("media.refusal", "Images are either processed or refused.", Level.L2, needs=("media",))
def refusal(scene: Scene) -> None:
    """A model of text alone refuses them; one that sees them processes prompts with and without."""
    refused = EXTENSIONS["media"].refusal
    if refused is not None and Feature.MEDIA not in scene.declared[0].features:
        refused(scene)
    for golden, stage in seeing(scene):
        run(stage, cases_of(golden, ("greedy-one", "greedy-text")))


@clause(
    "media.tokens",
    "A prompt with an image leads to the golden tokens and logprobs.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images",),
    since=(1, 10),
)
def tokens(scene: Scene) -> None:
    """An image amid a text, before it and after it."""
    for golden, stage in seeing(scene):
        run(stage, cases_of(golden, _ALONE))


@clause(
    "media.order",
    "Each of several images takes the place of its own tokens, in the order of the prompt.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images",),
    since=(1, 10),
)
def order(scene: Scene) -> None:
    """Two images, in the other order too, one that comes twice, three, and two without a text between them."""
    for golden, stage in seeing(scene):
        run(stage, cases_of(golden, _SEVERAL))


@clause(
    "media.mates",
    "Rows with images, with other images and without any run in the same steps, and each makes the tokens that it makes alone.",
    Level.L2,
    needs=("media",),
    situations=("several rows share a step",),
    since=(1, 10),
    rows=3,
)
def mates(scene: Scene) -> None:
    """Started together with a text in front, merged, joined where the session mixes; the first row leaves."""
    for golden, stage in seeing(scene):
        ids = ("greedy-text", "greedy-begins", "greedy-two", "greedy-twice", "greedy-one")
        text, begins, two, twice, one = (asking(stage, case) for case in cases_of(golden, ids))
        batch = stage.decode(stage.start(text, begins, two), steps=2)
        batch = stage.filter(batch, (two.id, begins.id))
        mixes = stage.capabilities.mixing is not Mixing.NONE
        batch = stage.start(twice, beside=batch) if mixes else stage.decode(batch, stage.start(twice))
        batch = stage.filter(batch, (twice.id, two.id))
        stage.decode(stage.start(one), batch, steps=2)


@clause(
    "media.chunks",
    "A prompt whose images run in several steps makes the tokens of the same prompt in one.",
    Level.L2,
    needs=("media", "chunked_prefill"),
    situations=("a prompt has images", "a prompt begins in part", "a prompt goes on"),
    since=(1, 10),
)
def chunks(scene: Scene) -> None:
    """In chunks of many sizes. A step ends inside an image only if its tokens do not see each other."""
    for golden, stage in seeing(scene):
        for chunk, case in zip((1, 2, 4, 5, 7, 11), cases_of(golden, (*_ALONE, "greedy-three", *_SEVERAL[:2])), strict=True):
            request = asking(stage, case, rules_of(stage).uncut(outlined(stage, case), chunk))
            batch = finish(stage, stage.start(request), request.id, chunk)
            stage.filter(stage.decode(batch, steps=2), ())


@clause(
    "media.continue",
    "A request with images that is continued with the tokens of its answer makes those that follow; an answer has no images.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images",),
    since=(1, 10),
)
def continuing(scene: Scene) -> None:
    """After one token of the answer and after several, and after one with a placeholder's id."""
    for golden, stage in seeing(scene):
        for case, known in zip(cases_of(golden, ("greedy-one", "greedy-two", "answered")), (1, 5, 1), strict=True):
            request = asking(stage, case, known=known)
            stage.filter(stage.decode(stage.start(request), steps=len(case.tokens) - known - 1), ())
            if stage.has(Feature.CHUNKED_PREFILL):
                request = asking(stage, case, len(case.prompt), known=known + 1)
                stage.filter(finish(stage, stage.start(request), request.id, 1), ())


@clause(
    "media.again",
    "An image makes the same tokens again, whatever has run since, and as long as any row has it.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images", "everything is cleared"),
    since=(1, 10),
    rows=2,
)
def again(scene: Scene) -> None:
    """After other images and after everything was cleared; and while a row with the same image leaves amid the other's prompt."""
    for golden, stage in seeing(scene):
        one, two, twice, three = cases_of(golden, ("greedy-one", "greedy-two", "greedy-twice", "greedy-three"))
        run(stage, [one, twice, one])
        stage.start(asking(stage, two))
        stage.clear(None)
        run(stage, [one])
        chunked = stage.has(Feature.CHUNKED_PREFILL)
        leaves, stays = asking(stage, two), asking(stage, three, 1 if chunked else None)
        batch = stage.decode(stage.start(leaves), stage.start(stays))
        batch = stage.filter(batch, (stays.id,))
        stage.decode(finish(stage, batch, stays.id, 8), steps=2)


def _lead(stage: Stage, count: int) -> tuple[int, ...]:
    return stage.varied((3 * index + 1) % 50 for index in range(count))


def _share(stage: Stage, tokens: Sequence[int], cached: int, images: tuple[bytes, ...]) -> None:
    """Run a prompt with two images, then two requests behind its first `cached` tokens: it again, and it with another second image."""
    first, second, third = images
    owner = stage.request(tokens, media=(first, second))
    batch = stage.start(owner)
    again = stage.request(tokens, media=(first, second), cached=cached, shares=owner)
    other = stage.request((*tokens, 8), media=(first, third), cached=cached, shares=owner)
    stage.filter(stage.decode(batch, stage.start(again, other), steps=2), ())


@clause(
    "media.prefix",
    "A request may start behind blocks that hold images, or part of one, and makes the tokens that it makes without them.",
    Level.L2,
    needs=("media", "prefix_reuse"),
    situations=("a prompt has images", "a prefix is reused"),
    since=(1, 10),
    rows=3,
)
def prefix(scene: Scene) -> None:
    """A prefix that ends inside an image, and one that ends between two."""
    for golden, stage in seeing(scene, prefix_plan(scene.declared[0].block_sizes), alone=True):
        size, image = stage.capacity.groups[0].block_size, (golden.placeholder or 0,) * rules_of(stage).form.tokens
        lead, behind = _lead(stage, max(0, size - 4)), _lead(stage, 3)
        inside = (*lead, *image, *behind, *image, 5)
        whole = -(-(len(image) + 3) // size) * size
        between = (*behind, *image, *_lead(stage, whole - len(image) - 2), *image, 5)
        if max(len(inside), len(between)) + 5 > stage.capacity.max_row_tokens:
            raise NotReached(f"images behind a block of {size} tokens do not fit a row of {stage.capacity.max_row_tokens}")
        for tokens, cached in ((inside, size), (between, whole)):
            _share(stage, tokens, cached, tuple(golden.images.values()))


@clause(
    "media.encode",
    "Encoding an image ahead changes nothing, however often it is done, and refuses one that does not fit as an InvalidRequest.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images", "encode refused"),
    since=(1, 10),
)
def encoding(scene: Scene) -> None:
    """Twice before a step; between a step and its rows; in a thread of its own while steps run; and damaged ones."""
    for golden, stage in seeing(scene):
        if getattr(stage.play.session.implementation, "encode", None) is None:
            raise DoesNotApply("it encodes no image ahead")
        one, two, three = cases_of(golden, ("greedy-one", "greedy-two", "greedy-three"))
        first, other = one.media[0], two.media[1]
        for item in (first, first, other):
            stage.play.call(Encode(item), allowed=True)
        for item in unfit(rules_of(stage), first):
            stage.refuse(InvalidRequest, Encode(item))
        step = stage.launch(asking(stage, one))
        stage.play.call(Encode(other), allowed=True)
        batch = stage.read(step)
        beside = _Beside(stage, [*three.media, first])
        batch = stage.decode(batch, steps=3)
        beside.join()
        stage.filter(batch, ())
        run(stage, [two, three])


class _Beside:
    """A thread that encodes images while steps run. `join` raises Violation if it fails."""

    def __init__(self, stage: Stage, items: Sequence[bytes]) -> None:
        self._session, self._items = stage.play.session, items
        self._error: BackendError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Wait until all are encoded."""
        self._thread.join()
        if self._error is not None:
            why = f"encode raised {type(self._error).__name__} in a thread beside steps: {self._error}"
            raise Violation("refusal", why) from self._error

    def _run(self) -> None:
        try:
            for item in self._items:
                self._session.encode(item)
        except BackendError as error:
            self._error = error


def unfit(rules: ImageRules, item: bytes) -> tuple[bytes, ...]:
    """Return variants of an item that do not fit: damaged ones, and then two that are whole, of another shape and of another length."""
    name, dtype, shape = rules.form.tensors[0]
    smaller = ItemForm(rules.form.tokens, ((name, dtype, (*shape[:-1], shape[-1] - 1)), *rules.form.tensors[1:]))
    shorter = ItemForm(rules.form.tokens - 1, rules.form.tensors)
    return (b"", b"picture", item[:-8], item[:9] + b"?" + item[10:], written(smaller, item), written(shorter, item))


def _misfits(stage: Stage, case: Case) -> Iterator[Request]:
    """Yield variants of a request with two images that must be refused; all of them have the same blocks."""
    rules, right, (first, second) = rules_of(stage), asking(stage, case), case.media
    at = right.tokens.index(rules.placeholder)
    text = (*right.tokens[:at], 5, *right.tokens[at + 1 :])
    yield from (replace(right, media=media) for media in ((first,), (first, second, first)))
    yield from (replace(right, tokens=tokens) for tokens in (text, (rules.placeholder, *right.tokens[1:])))
    for wrong in unfit(rules, first):
        form = read_form(wrong)
        tokens = text if form is not None and form.tokens < rules.form.tokens else right.tokens
        yield replace(right, tokens=tokens, media=(wrong, second))
        if form is None:
            yield replace(right, media=(first, wrong))
            if stage.has(Feature.CHUNKED_PREFILL):
                yield replace(right, media=(first, wrong), take=1)


@clause(
    "media.unfit",
    "A request whose images do not fit the model or its prompt is an InvalidRequest that names it, before its step.",
    Level.L2,
    needs=("media",),
    situations=("a prompt has images", "prefill refused"),
    since=(1, 10),
    rows=3,
)
def misfits(scene: Scene) -> None:
    """Too few images, too many, too few tokens, damaged ones, also in a later chunk; beside a sound request and, where the session mixes, a
    row that runs, which both go on."""
    for golden, stage in seeing(scene):
        one, two = cases_of(golden, ("greedy-one", "greedy-two"))
        begun, mate = stage.start(asking(stage, one)), asking(stage, cases_of(golden, ("greedy-text",))[0])
        mixes = stage.capabilities.mixing is not Mixing.NONE
        for wrong in _misfits(stage, two):
            stage.refuse(InvalidRequest, Prefill((mate, wrong), begun if mixes else NOTHING))
        stage.decode(begun, stage.start(mate), stage.start(asking(stage, two)), steps=2)


@clause(
    "media.whole",
    "Where tokens of an image see each other, a step that ends inside one is an InvalidRequest that names its request.",
    Level.L2,
    needs=("media", "chunked_prefill"),
    situations=("a prompt has images",),
    since=(1, 10),
    rows=2,
)
def whole(scene: Scene) -> None:
    """In the first step and in a later one, beside a row that is sound and goes on; then the images run whole."""
    if not any(stage.capabilities.whole_images for _, stage in seeing(scene)):
        raise DoesNotApply("its images may be cut")
    for golden, stage in seeing(scene):
        if not stage.capabilities.whole_images:
            continue
        text, two = cases_of(golden, ("greedy-text", "greedy-two"))
        mate, (begin, end) = asking(stage, text), rules_of(stage).images(outlined(stage, two))[0]
        for take in (begin + 1, end - 1):
            stage.refuse(InvalidRequest, Prefill((mate, asking(stage, two, take))))
        request = asking(stage, two, 1)
        batch = stage.decode(stage.start(mate), stage.start(request))
        cut = stage.grant(stage.row(request.id), begin + 2)
        stage.refuse(InvalidRequest, Decode((batch,), (cut, stage.grant(stage.row(mate.id)))))
        batch = stage.filter(stage.decode(batch), (request.id,))
        stage.decode(finish(stage, batch, request.id, 3), steps=2)
