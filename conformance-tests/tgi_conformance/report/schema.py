"""The JSON schema of reports, written to schema.json by `python -m tgi_conformance.report.schema`."""

from __future__ import annotations

import json
from typing import Any

from tgi_conformance.report.document import SCHEMA, SCHEMA_FILE
from tgi_conformance.verdict import Verdict

_TEXT = {"type": "string"}
_NUMBER = {"type": "number", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 0}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_VERSION = {"type": "array", "items": _COUNT, "maxItems": 2}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": sorted(fields), "additionalProperties": False}


def _map(value: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}


def _list(value: Any) -> dict[str, Any]:
    return {"type": "array", "items": value}


def schema() -> dict[str, Any]:
    """Return the schema of a report."""
    entry = _object(
        id={"type": "string", "pattern": "^[a-z]+\\.[a-z-]+$"},
        sentence=_TEXT,
        level={"enum": ["L0", "L1", "L2", "L3", "L4"]},
        features=_list(_TEXT),
        provisional={"type": "boolean"},
        verdict={"enum": [verdict.value for verdict in Verdict]},
        message=_TEXT,
        seconds=_NUMBER,
        situations=_map(_COUNT),
        figures=_map({"type": "number"}),
        sequence=_list(_TEXT),
    )
    backend = _object(
        name=_TEXT,
        distribution=_TEXT,
        vendor=_TEXT,
        version=_TEXT,
        api_built=_VERSION,
        device_kind=_TEXT,
        devices=_list(_TEXT),
        verified_on_hardware={"type": "boolean"},
    )
    report = _object(
        schema={"const": SCHEMA},
        suite=_object(version=_TEXT, digest=_DIGEST, clauses=_COUNT, api=_VERSION),
        backend=backend,
        model=_TEXT,
        dtype=_TEXT,
        seed=_COUNT,
        effort=_NUMBER,
        environment=_map(_TEXT),
        made={"type": "string", "pattern": "^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$"},
        seconds=_NUMBER,
        results=_list(entry),
        levels=_object(L0=_TEXT, L1=_TEXT, L2=_TEXT, L3=_TEXT),
        text_core=_TEXT,
        extended=_map({"enum": ["supported", "known failures", "failing", "unsupported", "untested"]}),
        digest=_DIGEST,
    )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A conformance report of a tgi-core backend"}
    return head | report


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json.dumps(schema(), indent=1) + "\n")
