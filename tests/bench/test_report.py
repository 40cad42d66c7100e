"""The document says what the results say, and is the one that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.chip import chip
from bench.machine import machine
from bench.report.document import DOCUMENT, README, picture, render, summary
from bench.report.figures import Figure, figure, ratio
from bench.report.plot import plot
from bench.results import complete, load, load_peers, save

ROWS = [
    {"engine": name, "batch": 1, "context": 128, "round": turn, "decode": rate, "prefill": 10 * rate}
    for turn, rates in enumerate([(100.0, 50.0), (120.0, 40.0), (20.0, 5.0)])
    for name, rate in zip(("ours", "theirs & co"), rates, strict=True)
]


def result(**more: Any) -> dict[str, Any]:
    """A part as it is kept."""
    engines = {name: {"version": "1", "precision": "bfloat16", "flags": {"threads": 2}} for name in ("ours", "theirs & co")}
    return {"title": "Engines", "complete": True, "machine": machine(), "engines": engines, "rows": ROWS, **more}


def test_figures() -> None:
    """A median with its spread; a ratio is within each round, since a round has its own weather."""
    ours, theirs = ROWS[::2], ROWS[1::2]
    assert figure(ours, "decode") == Figure(100.0, 20.0, 120.0)
    assert ratio(theirs, "decode", ours) == 3.0
    with pytest.raises(ValueError, match="no round in common"):
        ratio(theirs[:1], "decode", ours[1:2])
    with pytest.raises(ValueError, match="no measurements"):
        figure([], "decode")


def test_the_document() -> None:
    """It has figures, ratio, precision, settings, machine, and what could not run; a part that was broken off says so."""
    text = render({"zen-9": {"offline-135m": result(complete=False, failed={"vLLM": "no AVX"})}})
    assert "| theirs & co | bfloat16 | 1 | 128 | 40.0 (5.00–50.0) | 3.00 |" in text
    assert "threads 2" in text and machine()["cpu"] in text
    assert f"## {machine()['chip']}" in text and "(benchmarks-zen-9.svg)" in text
    assert f"| {machine()['chip']} | 3.00 | 3.00 |  |" in text
    assert "vLLM could not run: no AVX" in text and "Broken off" in text


def test_the_picture() -> None:
    """Well-formed, a bar per engine and batch size, as long as its figure."""
    tree = ElementTree.fromstring(plot({"offline-135m": result()}))  # noqa: S314 - our own
    ours, theirs = tree.findall(".//{*}rect")
    assert float(theirs.attrib["width"]) / float(ours.attrib["width"]) == pytest.approx(0.4, abs=0.01)


def test_a_part_is_complete_only_in_the_end(tmp_path: Path) -> None:
    """What was broken off is measured again."""
    assert not complete(tmp_path, "part")
    save(tmp_path, "part", {"rows": []}, done=False)
    assert not complete(tmp_path, "part")
    save(tmp_path, "part", {"rows": [1.23456789]}, done=True)
    assert complete(tmp_path, "part") and load(tmp_path)["part"]["rows"] == [1.2346]


def test_the_machine_tells_what_it_lacks(tmp_path: Path) -> None:
    """A processor without bfloat16 instructions is named as one."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx2 avx512f\n")
    assert machine(cpuinfo)["has"] == ["avx2", "avx512f"] and "avx512_bf16" in machine(cpuinfo)["lacks"]


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 1, "Zen 3"),
        ("AuthenticAMD", 25, 17, "Zen 4"),
        ("AuthenticAMD", 26, 2, "Zen 5"),
        ("GenuineIntel", 6, 143, "Sapphire Rapids"),
        ("GenuineIntel", 6, 1, "GenuineIntel 6 1"),
        ("AuthenticAMD", 6, 143, "AuthenticAMD 6 143"),
    ],
)
def test_a_chip_has_the_name_of_its_generation(tmp_path: Path, vendor: str, family: int, model: int, name: str) -> None:
    """Clouds hide model names; the numbers say what it is, and what nobody listed is told by them."""
    cpuinfo = tmp_path / "cpuinfo"
    fields = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
    cpuinfo.write_text(f"{fields}\nvendor_id\t: y\n")
    assert chip(cpuinfo) == name
    if vendor == "GenuineIntel" and name.endswith("1"):
        cpuinfo.write_text(f"{fields}flags\t\t: avx2 amx_tile\n\nvendor_id\t: y\n")
        assert chip(cpuinfo) == "Xeon with AMX"


def test_the_committed_document_is_the_one_that_the_results_make() -> None:
    """`python -m bench.peers report` changes nothing."""
    chips = load_peers()
    assert DOCUMENT.read_text() == render(chips) and summary(chips) in README.read_text()
    for name, parts in chips.items():
        assert (DOCUMENT.parent / picture(name)).read_text() == plot(parts)
