"""What an OpenAPI document says of each route, as names of fields: comparable between servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def surface(document: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Per method and path the fields of its body and of its answers; nested ones with dots."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            contents = operation["responses"]["200"].get("content", {})
            answers = [fields(_event(content.get("schema", {})), document) for content in contents.values()]
            found[f"{method.upper()} {path}"] = {
                "body": sorted(set(fields(body, document))),
                "answer": sorted({name for names in answers for name in names}),
            }
    return found


def _event(schema: dict[str, Any]) -> dict[str, Any]:
    """The data of an event, where the schema is one's."""
    data = schema.get("properties", {}).get("data", {})
    forms = data.get("anyOf", [data])  # a stream may end with [DONE], which has no schema of its own
    inner: dict[str, Any] = next((form["contentSchema"] for form in forms if "contentSchema" in form), schema)
    return inner


def fields(schema: dict[str, Any], document: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Names of fields, of all alternatives."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for key in ("allOf", "anyOf", "oneOf"):
        for each in schema.get(key, ()):
            yield from fields(each, document, prefix, depth)
    if "items" in schema:
        yield from fields(schema["items"], document, prefix, depth)
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name
        if depth < 4:
            yield from fields(inner, document, f"{prefix}{name}.", depth + 1)
