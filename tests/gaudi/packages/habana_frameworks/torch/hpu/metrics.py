"""The bridge's counters."""

from habana_frameworks.torch.hpu.compiler import COMPILED


class Metric:
    """One of them."""

    def __init__(self, total: int) -> None:
        self._total = total

    def stats(self) -> list[tuple[str, int]]:
        """By name."""
        return [("TotalNumber", self._total)]


def metric_global(name: str) -> Metric:
    """Since the process began."""
    return Metric({"graph_compilation": len(COMPILED), "cpu_fallback": 0, "recipe_cache": 0, "memory_defragmentation": 0}[name])
