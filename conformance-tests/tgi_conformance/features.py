"""The extended features: how a session declares each one, and how it must refuse one that it did not declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tgi_conformance.calls import Decode, Prefill
from tgi_conformance.fields import DECLARED, using
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Violation
from tgi_core.backend import (
    BackendError,
    CacheKind,
    Determinism,
    Feature,
    Group,
    InvalidRequest,
    Mixing,
    OpenOptions,
    OutputOptions,
    Request,
    SamplingField,
    SamplingSpec,
    Unsupported,
)

Declared = Callable[[Scene], bool]
Refusal = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Extension:
    """A named feature beyond `text-core`. `refusal` is None where nothing can be refused, and `why` gives the reason."""

    name: str
    sentence: str
    declared: Declared
    refusal: Refusal | None
    why: str = ""
    structural: bool = False
    """A trait of the device rather than a feature: clauses that need it still belong to `text-core`."""


def _flag(feature: Feature) -> Declared:
    return lambda scene: feature in scene.declared[0].features


def _field(spec: SamplingSpec) -> Declared:
    return lambda scene: spec.field in scene.declared[0].sampling


def _seeded(scene: Scene) -> bool:
    capabilities = scene.declared[0]
    return SamplingField.SEED in capabilities.sampling and capabilities.determinism is not Determinism.NONE


def _adapts(scene: Scene) -> bool:
    """Return whether a session opened with adapters declares lora; declaring it without adapters claims it too."""
    declared = (scene.declared[0], scene.adapted)
    return any(found is not None and Feature.LORA in found.features for found in declared)


def _sees(scene: Scene) -> bool:
    """Return whether any session declares media: that of the usual model, or of a golden checkpoint that sees images."""
    return Feature.MEDIA in scene.declared[0].features or bool(scene.seeing)


def _drafts(scene: Scene) -> bool:
    return Feature.SPECULATION in scene.declared[0].features or scene.declared[1].draft > 0


def _pages(scene: Scene) -> bool:
    capacity = scene.declared[1]
    return capacity.groups[0].block_size < capacity.max_row_tokens


def _windows(scene: Scene) -> bool:
    return any(group.kind is CacheKind.WINDOW and group.window is not None for group in scene.declared[1].groups)


def _refused(change: Callable[[Stage, Request], Request]) -> Refusal:
    """Check that the request is refused as Unsupported, its valid batch mate is not admitted, and the session still works."""

    def refusal(scene: Scene) -> None:
        stage = scene.stage()
        mate, plain = stage.request(stage.prompts[0]), stage.request(stage.prompts[2])
        wanting = change(stage, plain)
        if not stage.play.oracle.expect(Prefill((mate, wanting))).errors:
            raise Violation("constant", "sessions with and without a mask source do not declare the same features")
        stage.refuse(Unsupported, Prefill((mate, wanting)))
        stage.decode(stage.start(mate), steps=2)

    return refusal


def _sampled_by(spec: SamplingSpec) -> Callable[[Stage, Request], Request]:
    return lambda stage, request: replace(request, sampling=using(spec, spec.tried[0]))


def _reuses(stage: Stage, request: Request) -> Request:
    return replace(request, cached=1, take=len(request.tokens) - 1)


def _no_mixing(scene: Scene) -> None:
    stage = scene.stage()
    batch = stage.start(stage.request(stage.prompts[0]))
    newcomer = stage.request(stage.prompts[1])
    stage.refuse(Unsupported, Prefill((newcomer,), batch))
    if stage.capacity.max_rows == 1:
        stage.filter(batch, ())
        stage.start(newcomer)
    else:
        stage.decode(stage.start(newcomer), batch)


def _no_drafts(scene: Scene) -> None:
    stage = scene.stage()
    request = stage.request(stage.prompts[0])
    batch = stage.start(request)
    grant = stage.grant(stage.row(request.id), 2)
    stage.refuse(Unsupported, Decode((batch,), (replace(grant, drafts=(1,)),)))
    stage.refuse(InvalidRequest, Decode((batch,), (grant,)))


def _no_ranks(scene: Scene) -> None:
    """Check once in a run that a group is refused, because a device may take long to refuse it."""
    target = scene.target
    if "no ranks" in scene.alone.passed:
        return
    options = OpenOptions(str(target.model), target.dtype, Group(0, 2, "127.0.0.1:1"))
    try:
        scene.opened(lambda: target.open(options))
    except Unsupported:
        scene.alone.passed.add("no ranks")
        return
    except BackendError as error:
        raise Violation("refusal", f"a group of two ranks raised {type(error).__name__} instead of Unsupported") from error
    raise Violation("refusal", "a group of two ranks opened, although tensor_parallel is not declared")


EXTENSIONS: dict[str, Extension] = {
    item.name: item
    for item in (
        Extension(
            "logprobs",
            "the logprob of each token",
            _flag(Feature.LOGPROBS),
            _refused(lambda s, r: replace(r, want=OutputOptions(True))),
        ),
        Extension(
            "top_n",
            "the most likely tokens at each position",
            _flag(Feature.TOP_N),
            _refused(lambda s, r: replace(r, want=OutputOptions(False, 2))),
        ),
        Extension(
            "prompt_logprobs",
            "logprobs of the prompt",
            _flag(Feature.PROMPT_LOGPROBS),
            _refused(lambda s, r: replace(r, want=OutputOptions(False, 0, True))),
        ),
        Extension(
            "chunked_prefill", "a prompt in chunks", _flag(Feature.CHUNKED_PREFILL), _refused(lambda s, r: replace(r, take=3))
        ),
        Extension(
            "mixing",
            "new rows join a running batch in one step",
            lambda scene: scene.declared[0].mixing is not Mixing.NONE,
            _no_mixing,
        ),
        Extension(
            "prefix_reuse",
            "a request starts behind blocks that are already filled",
            _flag(Feature.PREFIX_REUSE),
            _refused(_reuses),
        ),
        Extension("masks", "grammar masks", _flag(Feature.MASKS), _refused(lambda s, r: replace(r, masked=True))),
        *(Extension(spec.name, spec.sentence, _field(spec), _refused(_sampled_by(spec))) for spec in DECLARED),
        Extension(
            "seeds",
            "the same seed makes the same tokens again",
            _seeded,
            None,
            "every request has a seed, so none can be refused for it",
        ),
        Extension(
            "formula",
            "the published sampling formula",
            lambda scene: scene.declared[0].determinism is Determinism.CORE,
            None,
            "a declared level, not something a request asks for",
        ),
        Extension(
            "run_ahead",
            "steps are launched before the previous one is read",
            lambda scene: scene.declared[1].in_flight > 1,
            None,
            "in_flight is 1, so steps run in lock step",
            structural=True,
        ),
        Extension(
            "late_failures",
            "a step can be made to fail",
            lambda scene: scene.breakable,
            None,
            "there is neither a mask source nor conformance_fail",
            structural=True,
        ),
        Extension("paging", "a row spans several blocks", _pages, None, "a block holds a whole row", structural=True),
        Extension(
            "windows",
            "blocks outside of a window are taken back",
            _windows,
            None,
            "all layers share a cache group that keeps every position",
            structural=True,
        ),
        Extension(
            "batch_invariant",
            "the same bits whatever else is in the batch",
            _flag(Feature.BATCH_INVARIANT),
            None,
            "a promise, not something a request asks for",
        ),
        Extension("lora", "adapters", _adapts, _refused(lambda s, r: replace(r, adapter="an-adapter"))),
        Extension("media", "images in the prompt", _sees, _refused(lambda s, r: replace(r, media=(b"picture",)))),
        Extension("speculation", "drafts", _drafts, _no_drafts),
        Extension("tensor_parallel", "several ranks share a model", _flag(Feature.TENSOR_PARALLEL), _no_ranks),
    )
}
"""Extensions by name, in the order of the support matrix."""


def missing(scene: Scene, needs: tuple[str, ...]) -> list[Extension]:
    """Return the needed features that this session does not declare."""
    return [EXTENSIONS[name] for name in needs if not EXTENSIONS[name].declared(scene)]
