"""A report as JUnit XML, with one suite per level."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

_SKIPPED = ("unsupported", "not run", "known")


def junit(document: dict[str, Any]) -> str:
    """Render a report. INCONCLUSIVE counts as a failure, since nothing was proved."""
    root = ET.Element("testsuites", name=f"tgi-conformance {document['backend']['name']}")
    for level in ("L0", "L1", "L2", "L3", "L4"):
        entries = [entry for entry in document["results"] if entry["level"] == level]
        suite = ET.SubElement(root, "testsuite", name=level)
        for entry in entries:
            _case(suite, entry)
        for name, tags in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tags}"))))
        suite.set("tests", str(len(entries)))
        suite.set("time", f"{sum(entry['seconds'] for entry in entries):.3f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, entry: dict[str, Any]) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=entry["id"].partition(".")[0], name=entry["id"], time=f"{entry['seconds']:.3f}"
    )
    verdict = entry["verdict"]
    if verdict in _SKIPPED:
        ET.SubElement(case, "skipped", message=_clean(f"{verdict}: {entry['message']}"))
    elif verdict != "pass":
        tag = "error" if verdict == "error" else "skipped" if entry["provisional"] else "failure"
        child = ET.SubElement(case, tag, message=_clean(f"{verdict}: {entry['message']}"))
        child.text = _clean("\n".join([entry["sentence"], *entry["sequence"]]))


def _clean(text: str) -> str:
    """Remove the control characters that XML does not allow."""
    return "".join(char if char in "\n\t" or ord(char) >= 32 else "?" for char in text)
