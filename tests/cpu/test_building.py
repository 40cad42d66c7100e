"""Where the native kernels come from, and what happens when they cannot be had."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tgi_backend_cpu import building, picks
from tgi_backend_cpu.building import VARIANTS, CannotBuild, Variant

TINY = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of one line instead of the kernels, and an empty cache."""
    if not any(shutil.which(name) for name in building.COMPILERS):
        pytest.skip("no compiler")
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "kernels.cpp").write_text(TINY)
    monkeypatch.setattr(building, "SOURCES", folder)
    monkeypatch.setattr(building, "BUILT", folder / "built")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


PLAIN = Variant("plain", frozenset(), ())


def answer(file: Path) -> int:
    """What a library says."""
    return int(building.opened(file).answer())


def test_built_once_and_kept(sources: Path) -> None:
    """The first use compiles, the next one finds the library by the hash of its source; another source is another library."""
    first, origin = building.library(PLAIN)
    assert answer(first) == 42 and origin == "built now" and first.stat().st_uid == os.geteuid()
    assert building.library(PLAIN) == (first, "built before")
    (sources / "kernels.cpp").write_text(TINY.replace("42", "43"))
    second, origin = building.library(PLAIN)
    assert second != first and origin == "built now" and answer(second) == 43


def test_libraries_of_one_process_share_nothing(sources: Path) -> None:
    """Two variants define the same names, with other values: each finds its own."""
    shared = (
        "template <int> struct Shared { static constexpr int value = ANSWER; };\nconst int* volatile at = &Shared<0>::value;\n"
    )
    (sources / "kernels.cpp").write_text(shared + TINY.replace("42", "*at"))
    made = [Variant(f"variant{number}", frozenset(), (f"-DANSWER={number}",)) for number in (42, 43)]
    assert [answer(building.library(variant)[0]) for variant in made] == [42, 43]


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-1] + b"?", lambda data: b""])
def test_a_damaged_library_is_built_again(sources: Path, damage: object) -> None:
    """A truncated or changed file in the cache is never loaded."""
    file, _ = building.library(PLAIN)
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    again, origin = building.library(PLAIN)
    assert again == file and origin == "built now" and building.is_whole(file, building.source_hash(PLAIN))
    assert answer(again) == 42


def test_a_folder_that_others_can_write_is_not_trusted(sources: Path) -> None:
    """What lies in a cache that somebody else may have filled is not run; the library is built for this process alone."""
    file, _ = building.library(PLAIN)
    file.parent.chmod(0o777)
    other, origin = building.library(PLAIN)
    assert other.parent != file.parent and origin == "built now"
    shutil.rmtree(other.parent)


def test_what_the_wheel_brings_is_taken_first(sources: Path) -> None:
    """A library that was built with the package is used where it is of the same source, and not else."""
    building.BUILT.mkdir()
    building.build(PLAIN, building.BUILT / "plain.so")
    assert building.library(PLAIN) == (building.BUILT / "plain.so", "built with the package")
    (sources / "kernels.cpp").write_text(TINY + "\n")
    assert building.library(PLAIN)[1] == "built now"


def test_errors_say_what_failed(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler, and a compiler that refuses, are both named."""
    (sources / "kernels.cpp").write_text("#error no such luck\n")
    with pytest.raises(CannotBuild, match="no such luck"):
        building.library(PLAIN)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CannotBuild, match=r"no C\+\+ compiler"):
        building.library(PLAIN)


def test_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """All variants that the processor runs may be the fastest, but for vectors of half the width. A name asks for one,
    and must ask for the emulated one."""
    amx, avx512_bf16, avx512, avx2_vnni, avx2 = (variant.cpu_flags for variant in VARIANTS)
    for flags, asked, names in (
        (amx | avx2, "", ["amx", "avx512-bf16", "avx512"]),
        (avx512_bf16 | avx2, "auto", ["avx512-bf16", "avx512"]),
        (avx512 | avx2, "", ["avx512"]),
        (avx2_vnni, "", ["avx2-vnni", "avx2"]),
        (avx2, "", ["avx2"]),
        (amx | avx2, "avx2", ["avx2"]),
        (amx | avx2, "amx-emulated", ["amx-emulated"]),
    ):
        monkeypatch.setattr(building, "cpu_flags", lambda flags=flags: flags)
        assert [variant.name for variant in building.candidates({building.CHOICE: asked})] == names
    for flags, asked, reason in (
        (frozenset({"sse2"}), "", "lacks avx2, f16c, fma"),
        (avx2, "avx512", "lacks avx512bw"),
        (avx512_bf16, "amx", "lacks amx_bf16"),
        (amx, "torch", building.CHOICE),
        (amx, "neon", "is not a variant"),
    ):
        monkeypatch.setattr(building, "cpu_flags", lambda flags=flags: flags)
        with pytest.raises(CannotBuild, match=reason):
            building.candidates({building.CHOICE: asked})


def test_flags_of_the_processor(tmp_path: Path) -> None:
    """Flags are those of the first core; a system without /proc/cpuinfo has none."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nflags\t\t: other\n")
    assert building.cpu_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "fma"}
    assert building.cpu_flags(tmp_path / "none") == frozenset()


def test_progress_is_shown_at_once(sources: Path) -> None:
    """Compiling shows progress before the compiler has begun, and its end; what is built already shows none."""
    told: list[tuple[str, int, int, str]] = []
    begun: list[bool] = []

    def show(what: str, done: int, total: int, unit: str) -> None:
        begun.append(any(building.cache_folder().glob("*.sum")))
        told.append((what, done, total, unit))

    (name,) = [variant.name for variant in VARIANTS if variant.cpu_flags <= building.cpu_flags()][:1] or ("",)
    if not name:
        pytest.skip("no variant fits")
    assert picks.build_ahead({building.CHOICE: name}, show) == ""
    assert told[0] == (building.BUILDING, 0, building.USUAL_S, "s") and begun[0] is False
    assert told[-1] == (building.BUILDING, building.USUAL_S, building.USUAL_S, "s")
    told.clear()
    assert picks.build_ahead({building.CHOICE: name}, show) == "" and told == []
    assert picks.build_ahead({building.CHOICE: "torch"}, show) == f"{building.CHOICE}=torch"


def test_what_does_not_compile_is_told_once(sources: Path) -> None:
    """A compiler that fails is a reason, not an exception, and the end of the attempt."""
    (sources / "kernels.cpp").write_text("this is no C++")
    assert "failed: " in picks.build_ahead({}, lambda *_: None)


def test_a_compiler_that_takes_too_long(sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that hangs is killed after the limit."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(building, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(building, "_SHOW_EVERY_S", 0.02)
    with pytest.raises(CannotBuild, match="not done after"):
        building.library(PLAIN)
