"""Grammars in GBNF and Lark that broke grammar engines, or were made to."""

from __future__ import annotations


def _chain(rules: int, link: str = ' "a"') -> str:
    return "start: r0\n" + "".join(f"r{place}: r{place + 1}{link}\n" for place in range(rules)) + f'r{rules}: "b"\n'


def _doubling(rules: int, letter: str) -> str:
    made = "".join(f"{letter}{place}: {letter}{place + 1} {letter}{place + 1}\n" for place in range(rules))
    return f'start: {letter}0\n{made}{letter}{rules}: "b"\n'


GRAMMARS = [
    *(_chain(300), _chain(300, ""), _chain(4000), _chain(10_000), _chain(300).replace("r", "R").replace("staRt", "start")),
    *(_doubling(10, "r"), _doubling(60, "r"), _doubling(10, "T"), _doubling(60, "T"), _doubling(390, "r")),
    *('start: start start | "a" | ""', 'start: start start start | "a"', "start: a*\na: b*\nb: c*\nc: start*", 'start: ("a"?)* "b"'),
    *('start: "a"{100000000}', 'start: ("a"{1,1000}){1,1000}', "start: /(a{1,1000}){1,1000}/", "start: A*\nA: /.*/", 'start: ("a" | "a")*'),
    *("start: /(a|b)*a(a|b){20}/", "start: A\nA: B & C\nB: /.*a.{30}/\nC: /.*b.{30}/", "start: A\nA: ~B\nB: /(.*a){30}/", "start: ~/a/"),
    *('start: %json {"type": "integer", "multipleOf": 1000003}', 'start: %json {"$ref": "file:///etc/passwd"}', "start: %json {"),
    *("%import ../../etc/passwd", "%import common.NOTHING\nstart: NOTHING", '%ignore /.*/\nstart: "a"', '%llguidance {"x": 1}\nstart: "a"'),
    *("start: @other", "start: <[0]>", "start: <[0-4294967295]>", "start: <|end_of_text|>", "start: <nothing>", 'start[max_tokens=0]: "a"'),
    *('start[stop=""]: /.*/', 'start[capture="x"]: /.*/', 'start: a\na[suffix="b", lazy]: /.*/', 'start[temperature=1e309]: "a"'),
    *("(" * 30_000, "start: " + "(" * 30_000, "start: " + "[" * 30_000, "root ::= " + "[" * 30_000),
    "root ::= " + "(" * 300 + '"a"' + ")" * 300,
    *("root ::=", "root ::= root", 'root ::= root "a" | "b"', "root ::= a\na ::= b\nb ::= a", "root ::= [z-a]"),
    *("root ::= []", "root ::= [^]"),
    *('root ::= "\\', 'root ::= "\\q"', 'root ::= "\\xg0"', 'root ::= "\\u12"', 'root ::= "\\U00110000"', 'root ::= "a"{5,2}'),
    'root ::= "a"{',
    *('root ::= "a"{9999999999}', "::=", "root ::= |", 'root ::= "a" ::= "b"', 'root ::= "a"\nroot ::= "b"'),
    'a_B ::= "x"\naB ::= "y"\nroot ::= aB',
    *("\x00", "\n" * 60_000, "start: " + '"é"' * 10_000, "start: " + "|".join(f'"{n}"' for n in range(9_000)), "#" * 60_000, "/*", "//"),
]  # fmt: skip
