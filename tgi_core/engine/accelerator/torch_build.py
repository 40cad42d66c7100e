"""The platforms that the installed torch was built for, read from its files: importing torch takes seconds, and can fail on a broken
driver."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path


def torch_build() -> dict[str, str]:
    """The string constants of `torch/version.py`: `__version__`, and the version of each platform that this build is for.

    Empty if torch is not installed, or the file is missing.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    return dict(_constants(tree))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from ((target.id, value.value) for target in targets if isinstance(target, ast.Name))
