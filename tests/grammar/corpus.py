"""JSON schemas as people write them, drawn with the shares that keywords have in public collections.

`tool_like` stands for the hard half of schemas that describe data and the arguments of functions; `configuration_like` for those of
configuration files, which use all that the language has: conditions, patterns that look around, references to other servers. The
shares are estimates, and meant to err on the high side; they were not counted in a public collection.
"""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = (
    "name",
    "id",
    "kind",
    "value",
    "labels",
    "env",
    "path",
    "port",
    "image",
    "on",
    "steps",
    "$schema",
    "x-note",
    "größe",
    "a/b",
)
PATTERNS = ("^[a-z][a-z0-9_-]*$", "^\\d+(\\.\\d+){2}$", "^v?[0-9]+$", "^[^\\s]+$", "^(a|b)+$", "^/.{1,20}")
BEYOND = ("^(?!x-).*$", "^(?=.*[a-z]).{2,9}$", "\\bword\\b", "^(a|b)\\1$")
FORMATS = ("date-time", "date", "uri", "email", "uuid", "ipv4")
UNKNOWN_FORMATS = ("uri-reference", "regex", "password", "int32", "binary")


class Writer:
    """Writes schemas of one kind: `shares` has the probability of a keyword where it may be."""

    def __init__(self, seed: int, shares: dict[str, float]) -> None:
        self._random = Random(seed)
        self._shares = shares
        self._definitions: dict[str, Schema] = {}

    def schema(self) -> Schema:
        """A document."""
        pick = self._random
        for number in range(pick.randint(1, 3)):
            self._definitions[f"d{number}"] = self._object(2) if pick.random() < 0.6 else self._enum()
        root = self._object(0)
        if self._has("draft"):
            root["$schema"] = pick.choice(
                ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
            )
        return {**root, "$defs": self._definitions}

    def _has(self, keyword: str) -> bool:
        return self._random.random() < self._shares.get(keyword, 0.0)

    def _value(self, depth: int) -> Schema:
        pick = self._random
        if depth < 3 and self._has("oneOf"):
            return self._one_of(depth + 1)
        if depth < 3 and self._has("anyOf"):
            return {"anyOf": [self._value(depth + 1), {"type": "null"}]}
        if self._definitions and self._has("$ref"):
            return {"$ref": f"#/$defs/{pick.choice([name for name in self._definitions if name != 'base'] or ['base'])}"}
        if self._has("remote"):
            return {"$ref": "https://example.com/other.json#/definitions/thing"}
        kinds = [self._string, self._string, self._enum, self._number, lambda: {"type": "boolean"}]
        if depth < 3:
            kinds += [lambda: self._object(depth + 1), lambda: self._array(depth + 1), lambda: self._map(depth + 1)]
        made = pick.choice(kinds)()
        return self._not(made) if self._has("not") else made

    def _string(self) -> Schema:
        pick = self._random
        made: Schema = {"type": "string", "description": "Some text."}
        if self._has("beyond"):
            made["pattern"] = pick.choice(BEYOND)
        elif self._has("pattern"):
            made["pattern"] = pick.choice(PATTERNS)
        elif self._has("unknown format"):
            made["format"] = pick.choice(UNKNOWN_FORMATS)
        elif self._has("format"):
            made["format"] = pick.choice(FORMATS)
        elif self._has("length"):
            made |= {"minLength": 1, "maxLength": pick.randint(4, 40)}
        return made

    def _enum(self) -> Schema:
        pick = self._random
        words = ["red", "green", "blue", "always", "never", "auto", "all", "none"]
        return {"const": pick.choice(words)} if self._has("const") else {"type": "string", "enum": words[: pick.randint(2, 8)]}

    def _number(self) -> Schema:
        pick = self._random
        made: Schema = {"type": pick.choice(["integer", "number"])}
        return made | ({"minimum": 0, "maximum": pick.randint(1, 70000)} if self._has("range") else {})

    def _array(self, depth: int) -> Schema:
        pick = self._random
        made: Schema = {"type": "array", "items": self._value(depth), "maxItems": 4}
        if self._has("uniqueItems"):
            made["uniqueItems"] = True
        if self._has("contains"):
            made = {"type": "array", "items": {"type": "string"}, "contains": {"const": pick.choice(["main", "dev"])}}
        return made

    def _map(self, depth: int) -> Schema:
        pick = self._random
        made: Schema = {"type": "object", "additionalProperties": self._value(depth)}
        if self._has("propertyNames"):
            made["propertyNames"] = pick.choice(
                [{"pattern": "^[a-z]+$"}, {"enum": ["x", "y", "z"]}, {"type": "string"}, {"minLength": 2}]
            )
        elif self._has("patternProperties"):
            rest = pick.choice([{"additionalProperties": False}, {}])
            made = {"type": "object", "patternProperties": {pick.choice(PATTERNS[:4]): self._value(depth)}, **rest}
        if self._has("minProperties"):
            made["minProperties"] = 1
        return made

    def _object(self, depth: int) -> Schema:
        pick = self._random
        names = pick.sample(NAMES, pick.randint(2, 5))
        made: Schema = {"type": "object", "properties": {name: self._value(depth + 1) for name in names}}
        made["required"] = pick.sample(names, pick.randint(0, 2))
        if self._has("additionalProperties"):
            made["additionalProperties"] = False
        if self._has("patternProperties"):
            made["patternProperties"] = {"^x-": {"type": "string"}, **({"^\\$": {}} if pick.random() < 0.3 else {})}
        if self._has("if"):
            made |= self._condition(made)
        if self._has("dependencies"):
            key = pick.choice(["dependentRequired", "dependencies"])
            made[key] = {names[0]: [names[1]]}
        if self._has("one required"):
            made["oneOf"] = [{"required": [names[0]]}, {"required": [names[1]]}]
        if self._has("allOf"):
            made["allOf"] = [{"properties": {"more": {"type": "null"}}}, {"$ref": "#/$defs/base"}]
            made.pop("additionalProperties", None)
            self._definitions["base"] = {"properties": {"base": {"type": "string", "maxLength": 5}}}
        return made

    def _condition(self, made: Schema) -> Schema:
        pick = self._random
        names = list(made["properties"])
        made["properties"]["kind"] = {"enum": ["file", "url", "none"]}
        rule: Schema = {"if": {"properties": {"kind": {"const": "file"}}, "required": ["kind"]}, "then": {"required": [names[0]]}}
        if pick.random() < 0.5:
            rule["else"] = {"properties": {names[-1]: False}} if names[-1] not in made["required"] else {"required": ["kind"]}
        return rule if pick.random() < 0.5 else {"allOf": [rule]}

    def _one_of(self, depth: int) -> Schema:
        pick = self._random
        if pick.random() < 0.5:
            return {"oneOf": [self._value(depth), {"type": "null"}]}
        kinds = pick.sample(["alpha", "beta", "gamma"], 2)
        if pick.random() < 0.6:
            options = [self._object(depth + 1) for _ in kinds]
            for option, kind in zip(options, kinds, strict=True):
                option["properties"] = {"type": {"const": kind}, **option["properties"]}
                option["required"] = ["type", *option["required"]]
            return {"oneOf": options}
        return {"oneOf": [self._string(), self._enum(), {"type": "array", "items": {"type": "string"}}]}

    def _not(self, made: Schema) -> Schema:
        pick = self._random
        if made.get("type") == "object" and len(made.get("properties", {})) > 1:
            first, second = list(made["properties"])[:2]
            return {**made, "not": {"required": [first, second]}}
        if "enum" in made:
            return {**made, "not": {"const": pick.choice(made["enum"])}}
        return {**made, "not": {"enum": ["forbidden", 0]}}


TOOL = {
    "draft": 0.4, "oneOf": 0.05, "anyOf": 0.12, "$ref": 0.15, "pattern": 0.12, "format": 0.15, "unknown format": 0.05, "length": 0.2,
    "const": 0.2, "range": 0.4, "uniqueItems": 0.15, "contains": 0.01, "propertyNames": 0.1, "patternProperties": 0.04,
    "minProperties": 0.03, "additionalProperties": 0.5, "if": 0.02, "dependencies": 0.02, "one required": 0.02, "allOf": 0.04,
    "not": 0.02, "beyond": 0.01, "remote": 0.001,
}  # fmt: skip
CONFIGURATION = {
    "draft": 0.95, "oneOf": 0.12, "anyOf": 0.15, "$ref": 0.25, "pattern": 0.2, "format": 0.08, "unknown format": 0.06, "length": 0.15,
    "const": 0.15, "range": 0.3, "uniqueItems": 0.35, "contains": 0.02, "propertyNames": 0.08, "patternProperties": 0.2,
    "minProperties": 0.08, "additionalProperties": 0.6, "if": 0.06, "dependencies": 0.05, "one required": 0.04, "allOf": 0.08,
    "not": 0.05, "beyond": 0.04, "remote": 0.004,
}  # fmt: skip


def tool_like(count: int) -> list[Schema]:
    """Schemas of arguments and of data, from a fixed seed."""
    return [Writer(seed, TOOL).schema() for seed in range(count)]


def configuration_like(count: int) -> list[Schema]:
    """Schemas of configuration files, from a fixed seed."""
    return [Writer(1000 + seed, CONFIGURATION).schema() for seed in range(count)]
