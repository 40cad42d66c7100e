"""--draft-model, and a speculator's repository as --model-id: which model is served, with what, and how many drafts."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tgi_conformance.golden import default_model

from tgi_core.backend import Capabilities, Feature, Kernel, OpenOptions
from tgi_core.backend.reference import PROPOSALS, backend_open
from tgi_core.cli.open_options import open_options
from tgi_core.cli.shard_openers import open_model, warmup_plan
from tgi_core.cli.weights import fetch_models
from tgi_core.config import MAX_DRAFTS, Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.tokenizer import Tokenizer


def quiet(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody sees."""


def folder(path: Path, **config: Any) -> Path:
    """A directory with a config."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def medusa(path: Path, base: object) -> Path:
    """Medusa heads of a base."""
    return folder(path, medusa_num_heads=3, base_model_name_or_path=base)


def fetched(model: Path, **settings: Any) -> tuple[Path, str]:
    """The model and the speculator that its session is opened with."""
    directory, found = fetch_models(str(model), Settings(**settings), quiet)
    return directory, open_options(directory, found).speculator


def test_a_speculator_stands_for_its_model_and_itself(tmp_path: Path) -> None:
    """As in TGI; its model's files are those that are read for everything else."""
    base = folder(tmp_path / "base", model_type="llama")
    assert fetched(medusa(tmp_path / "medusa", str(base))) == (base, str(tmp_path / "medusa"))
    mlp = folder(tmp_path / "mlp", model_type="mlp_speculator", base_model_name_or_path=str(base))
    assert fetched(mlp) == (base, str(mlp))
    verifier = {"verifier": {"name_or_path": str(base)}}
    eagle3 = folder(tmp_path / "eagle3", speculators_model_type="eagle3", speculators_config=verifier)
    assert fetched(eagle3) == (base, str(eagle3))


def test_a_model_and_its_speculator(tmp_path: Path) -> None:
    """The flag names one of any layout."""
    base, small = folder(tmp_path / "base", model_type="llama"), folder(tmp_path / "small", model_type="llama")
    heads = medusa(tmp_path / "medusa", "nobody/knows")
    assert fetched(base) == (base, "")
    eagle3 = folder(tmp_path / "eagle3", model_type="llama", architectures=["LlamaForCausalLMEagle3"])
    for speculator in (small, heads, eagle3):
        assert fetched(base, draft_model=str(speculator)) == (base, str(speculator))


def test_a_model_that_brings_its_own(tmp_path: Path) -> None:
    """Layers for multi-token prediction are used where drafts are asked for, and no other speculator is; the config counts them, or the
    index names them."""
    base, small = folder(tmp_path / "base", num_nextn_predict_layers=1), folder(tmp_path / "small", model_type="llama")
    assert fetched(base) == (base, "") and fetched(base, speculate=0) == (base, "")
    assert fetched(base, speculate=2) == (base, str(base))
    assert fetched(base, speculate=2, draft_model=str(small)) == (base, str(small))
    assert fetched(small, speculate=2) == (small, "")
    (small / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"mtp.fc.weight": "model.safetensors"}}))
    assert fetched(small, speculate=2) == (small, str(small))


@pytest.mark.parametrize(
    ("base", "message"),
    [(None, "names no model"), ("", "names no model"), (7, "names no model"), ("itself", "is a speculator too")],
)
def test_a_speculator_without_a_model(base: object, message: str, tmp_path: Path) -> None:
    """It names one that is a model."""
    heads = medusa(tmp_path / "medusa", str(tmp_path / "medusa") if base == "itself" else base)
    with pytest.raises(StartupError, match=message) as raised:
        fetched(heads)
    assert str(heads / "config.json") in str(raised.value)


def test_two_speculators_are_one_too_many(tmp_path: Path) -> None:
    """The flag beside a speculator's repository."""
    base = folder(tmp_path / "base", model_type="llama")
    with pytest.raises(StartupError, match=r"--draft-model .*: .* is a speculator already; leave the flag out"):
        fetched(medusa(tmp_path / "medusa", str(base)), draft_model=str(base))


def capabilities(**changes: Any) -> Capabilities:
    """Those of a session that runs drafts."""
    return replace(backend_open(OpenOptions(str(default_model("none")))).capabilities(), **changes)


@pytest.mark.parametrize(
    ("asked", "proposals", "draft"),
    [(None, 0, 0), (None, 3, 3), (None, MAX_DRAFTS, 4), (2, 3, 2), (0, 3, 0), (5, 0, 5), (9, MAX_DRAFTS, 9)],
)
def test_the_number_of_drafts(asked: int | None, proposals: int, draft: int) -> None:
    """The default is the number of heads; a draft model, which has none, defaults to a few tokens."""
    assert warmup_plan(Settings(speculate=asked))(capabilities(proposals=proposals)).draft == draft


def test_more_drafts_than_heads() -> None:
    """Are an error, as in TGI."""
    with pytest.raises(StartupError, match="--speculate 4: the speculator guesses at most 3 tokens"):
        warmup_plan(Settings(speculate=4))(capabilities(proposals=3))


def test_a_speculator_that_is_not_run(caplog: pytest.LogCaptureFixture) -> None:
    """A backend that makes no proposals says why, and is served without."""
    kernels = (Kernel("proposals", "none", "it cannot"),)
    with caplog.at_level(logging.WARNING):
        assert warmup_plan(Settings(draft_model="heads", speculate=2))(capabilities(kernels=kernels)).draft == 2
        assert warmup_plan(Settings(speculate=2))(capabilities(kernels=kernels)).draft == 2
    for speculator in ("heads", "multi-token prediction"):
        assert f"speculator {speculator} is ignored: this backend runs none: it cannot" in caplog.text


def test_the_reference_backend_is_its_own(tmp_path: Path) -> None:
    """If it is opened with a speculator, whatever that is."""
    model = default_model("none")
    assert backend_open(OpenOptions(str(model), speculator=str(model))).capabilities().proposals == PROPOSALS
    assert Feature.SPECULATION in capabilities().features


def test_a_draft_model_has_the_tokenizer_of_the_model(tmp_path: Path) -> None:
    """With another one nearly all of its guesses would be wrong: an error in one line."""
    other = shutil.copytree(DEMO, tmp_path / "other")
    document = json.loads((other / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = document["model"]["vocab"]
    moved = [token for token, id in vocabulary.items() if id >= 300]
    vocabulary |= dict(zip(moved, [vocabulary[token] for token in [*moved[1:], moved[0]]], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(document))
    settings, tokenizer = Settings(backend="reference"), Tokenizer.load(DEMO)
    open_model(DEMO, tokenizer, replace(settings, draft_model=str(DEMO)), quiet).close()
    with pytest.raises(StartupError, match="has another tokenizer: token ") as raised:
        open_model(DEMO, tokenizer, replace(settings, draft_model=str(other)), quiet)
    assert "\n" not in str(raised.value)
