"""Small changes to a Python module, one at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitXor: ast.BitOr,
    ast.BitOr: ast.BitXor,
    ast.BitAnd: ast.BitOr,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change: where, the code before, and the code after. `tree` is the whole changed module."""

    place: str
    before: str
    after: str
    line: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """A name that does not depend on the line."""
        return f"{self.place}: {self.before} -> {self.after}"


def mutations(source: str) -> Iterator[Mutation]:
    """Yield all single changes to a module, except in docstrings, annotations, messages and imports."""
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for index, (place, node) in enumerate(_nodes(tree)):
        for variant in range(_variants(node)):
            changed = copy.deepcopy(tree)
            target = next(found for position, (_, found) in enumerate(_nodes(changed)) if position == index)
            before = ast.unparse(target)
            _change(target, variant)
            after = ast.unparse(target)
            name = f"{place}: {before} -> {after}"
            seen[name] = seen.get(name, 0) + 1
            where = place if seen[name] == 1 else f"{place} ({seen[name]})"
            yield Mutation(where, _short(before), _short(after), getattr(node, "lineno", 0), ast.fix_missing_locations(changed))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:87] + "..."


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes that may be changed, with the function each is in."""

    def walk(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}" if place else node.name
        if _variants(node):
            yield place, node
        for child in _children(node):
            yield from walk(child, place)

    yield from walk(tree, "")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield child nodes, except those that only people and type checkers read."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST) and not _is_text(item):
                yield item


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _variants(node: ast.AST) -> int:
    """Return how many changes a node allows."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            return 1
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            return 1
        case ast.AugAssign() | ast.BoolOp() | ast.IfExp():
            return 1
        case ast.UnaryOp(op=ast.Not()):
            return 1
        case ast.Constant(value=bool()) | ast.Constant(value=int()):
            return 1
        case ast.Expr(value=ast.Call()):
            return 1
        case ast.If() | ast.While():
            return 2 if isinstance(node, ast.If) else 0
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            return 1
    return 0


def _change(node: ast.AST, variant: int) -> None:
    """Change a node in place."""
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [_COMPARISONS[type(op)]()]
        case ast.BinOp(op=op):
            node.op = _ARITHMETIC[type(op)]()
        case ast.AugAssign(op=op):
            node.op = _ARITHMETIC.get(type(op), ast.Sub)()
        case ast.BoolOp(op=op):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.IfExp(body=body, orelse=orelse):
            node.body, node.orelse = orelse, body
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Expr():
            node.value = ast.Constant(None)
        case ast.If():
            node.test = ast.Constant(bool(variant))
        case ast.Return():
            node.value = ast.Constant(None)
