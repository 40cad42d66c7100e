"""Schemas and regular expressions that broke grammar engines, or were made to."""

from __future__ import annotations

from typing import Any

from tests.grammar.hostile_ebnf import GRAMMARS

Shape = dict[str, Any]

_REGEXES = [
    *("(a+)+b", "((a+)+)+b", "(x|y|z){1,60000}", "(a|b)*a(a|b){20}", "(a|b)*a(a|b){400}", "(((a{1,50}){1,50}){1,50}){1,50}"),
    *(
        "(" * 30000 + "a" + ")" * 30000,
        "(" * 200 + "a" + ")" * 200,
        "(" * 30000,
        "[" * 9000,
        "a{100000000}",
        "((a{1,1000}){1,1000}){1,1000}",
    ),
    *(
        ".{100000}",
        ".*a.{30}b.{30}c",
        ".*" * 1000,
        "(.*)*" * 200,
        "a?" * 3000 + "a" * 3000,
        "(a?){3000}a{3000}",
        "(?s).{0,65535}",
    ),
    *(
        "\\p{L}{1,5000}",
        "[\\s\\S]*foo[\\s\\S]{50}",
        "é" * 9000,
        "é" * 90000,
        "(?:a.*b|b.*a){40}",
        "(.{0,30}a){30}",
        ".*(.{0,20}a.{0,20}b){15}.*",
    ),
    *(
        "[",
        "*a",
        "+",
        "a**",
        "a{5,2}",
        "a{,5}",
        "a{5,",
        "a{",
        "{",
        "}",
        ")",
        "(?",
        "(?P<",
        "\\",
        "a\\",
        "[a-\\d]",
        "[z-a]",
        "[[:foo:]]",
        "\\p{Foo}",
    ),
    *(
        "\\1(a)",
        "(?=a)",
        "(?!a)b",
        "(?<=a)b",
        "\\bfoo\\b",
        "(?P<n>a)(?P=n)",
        "(?R)",
        "(?>a+)b",
        "a++",
        "a^",
        "$a",
        "\\A",
        "\\Z",
        "\\C",
        "(?-u)\\xff",
    ),
    *(
        "\\x{110000}",
        "\\u{D800}",
        "\ud800",
        "\x00",
        "[^\\x00-\\x{10FFFF}]",
        "",
        "|",
        "()*",
        "(|a)*",
        "^$",
        "&",
        "~a",
        "(a&b)",
        "\n",
        "/",
        '"',
    ),
    *(
        "/\nother: /x/",
        "start: /x/",
        "%ignore /x/",
        "a/b",
        "@",
        "#",
        "\U0001f600{3}",
        "|".join(map(str, range(12000))),
        "(a{0,200}b{0,200}){0,200}",
    ),
]
_KEYWORDS = [
    *(
        "properties",
        "required",
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
        "pattern",
        "format",
        "minLength",
        "type",
    ),
    *(
        "maxItems",
        "$ref",
        "$defs",
        "additionalProperties",
        "patternProperties",
        "minimum",
        "multipleOf",
        "$schema",
        "$id",
        "not",
        "x-guidance",
    ),
]
_WRONG: list[Any] = [5, "x", None, [], {}, [[]], {"a": 5}, -1, ["a", 5], "("]
_HUGE = [10**7, 2**63, 10**30, 1e300, -1, 0.5]


def _nested(depth: int, wrap: Any) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def _doubling(keyword: str, depth: int) -> Shape:
    references = [{"$ref": f"#/$defs/a{level + 1}"} for level in range(depth)]
    levels = {f"a{level}": {keyword: [reference, reference]} for level, reference in enumerate(references)}
    return {"$defs": {**levels, f"a{depth}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def _choices(count: int, width: int) -> Shape:
    def choice(place: int, option: int) -> Shape:
        name = f"p{place}_{option}"
        return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}

    return {"allOf": [{"anyOf": [choice(place, option) for option in range(width)]} for place in range(count)]}


def _schemas() -> list[Any]:
    integer = {"type": "integer"}
    made: list[Any] = [{key: value} for key in _KEYWORDS for value in _WRONG]
    made += [{"type": kind, key: value} for kind, key in _SIZES for value in _HUGE]
    made += [_nested(depth, wrap) for depth in (25, 200) for wrap in _WRAPPERS]
    made += [_doubling(keyword, depth) for keyword in ("allOf", "anyOf", "oneOf") for depth in (5, 40)]
    made += [_choices(4, 30), _choices(16, 3), _choices(20, 2)]
    made += [{"allOf": [{"type": "string", "pattern": f".*a{n}.*"} for n in range(100)]}]
    made += [{"allOf": [{"type": "integer", "multipleOf": n + 2} for n in range(200)]}, {"type": "integer", "multipleOf": 999983}]
    made += [{"type": "object", "properties": {f"p{n}": integer for n in range(count)}} for count in (500, 2000, 5000)]
    made += [{"enum": [f"v{n}" for n in range(count)]} for count in (5000, 11000)]
    made += [
        {"$ref": target} for target in ("#", "#/$defs/no", "#no", "file:///etc/passwd", "http://127.0.0.1:1/", "//x", "urn:x")
    ]
    made += [{"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}]}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]
    made += [
        {"type": "string", "pattern": regex} for regex in ("(a+)+b", "(?=a)", "[", "(" * 9000, "(a|b)*a(a|b){400}", ".*" * 1000)
    ]
    made += [
        "",
        "{",
        "[]",
        "null",
        "NaN",
        '{"minimum": NaN}',
        "[" * 60000,
        '{"a":' * 9000,
        '{"minimum": ' + "9" * 5000 + "}",
        '"\ud800"',
        "x" * 70000,
    ]
    made += [None, 5, True, [], ["a"], {"minimum": float("inf")}, {"const": "\ud800"}, {"a": {1: 2}}]
    return made


_SIZES = [
    *(
        ("string", "minLength"),
        ("string", "maxLength"),
        ("array", "minItems"),
        ("array", "maxItems"),
        ("object", "minProperties"),
    ),
    *(("object", "maxProperties"), ("integer", "minimum"), ("integer", "multipleOf"), ("number", "maximum")),
]
_WRAPPERS = [
    lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
    lambda inner: {"type": "array", "items": inner, "minItems": 9},
    lambda inner: {"anyOf": [inner, {"type": "string"}]},
    lambda inner: {"allOf": [inner, {"type": "integer"}]},
]
_SHAPES: list[Shape] = [
    *({}, {"type": None}, {"type": "lark", "value": "start: /a/"}, {"type": 5, "value": {}}, {"type": [], "value": {}}),
    *(
        {"type": "regex"},
        {"type": "regex", "value": 5},
        {"type": "json"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": 5},
    ),
    *(
        {"type": "json_schema", "value": {}},
        {"type": "json_schema", "value": {"schema": 5}},
        {"type": "json_schema", "json_schema": {"schema": 5}},
    ),
]

SHAPES: list[Shape] = [
    *({"type": "regex", "value": regex} for regex in _REGEXES),
    *({"type": "json", "value": schema} for schema in _schemas()),
    *({"type": "ebnf", "value": grammar} for grammar in GRAMMARS),
    *_SHAPES,
]
