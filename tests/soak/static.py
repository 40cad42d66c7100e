"""Soak C: `tgi serve` on the emulated static device, whose compiler writes a file for each program: none after warm-up."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.soak.http import EXPECTED, Crowd, soak

LIMITS = ("--backend", "static-cpu", "--max-batch-size", "8", "--max-total-tokens", "128")


class _Counting(Crowd):
    """Looks into the compiler's directory before the first call."""

    cache: Path
    warmed: set[Path]

    async def ask(self, requests: int) -> None:
        if not self.report.requests:
            type(self).warmed = set(self.cache.glob("*/*.txt"))
        await super().ask(requests)


def run(minutes: float) -> list[str]:
    """The long form. What went wrong."""
    with tempfile.TemporaryDirectory() as cache:
        _Counting.cache = Path(cache)
        report = soak(_Counting, (*LIMITS, "--compile-cache", cache), rounds=3, requests=100, seconds=60 * minutes, patience=900)
        later = set(Path(cache).glob("*/*.txt")) - _Counting.warmed
    answers = report.answers
    print(f"{len(_Counting.warmed)} programs, {len(later)} compiled in traffic; {report.requests} requests, answers {answers}")
    wrong = [f"answer {status}: {count} times" for status, count in answers.items() if status not in EXPECTED or status == 424]
    return wrong + [f"compiled in traffic: {path.name}" for path in later]
