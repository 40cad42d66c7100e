"""Name of the processor's generation. Cloud machines often say only "AMD EPYC" or "Intel(R) Xeon(R) Processor"."""

from __future__ import annotations

from pathlib import Path

_AMD = {
    23: {3: "Zen 2", 6: "Zen 2", 7: "Zen 2"},
    25: {0: "Zen 3", 1: "Zen 4", 2: "Zen 3", 4: "Zen 3", 5: "Zen 3", 6: "Zen 4", 7: "Zen 4", 10: "Zen 4c"},
    26: {0: "Zen 5", 1: "Zen 5c", 2: "Zen 5", 4: "Zen 5", 6: "Zen 5"},
}
"""By family, then by the upper half of the model's byte."""
_INTEL = {85: "Cascade Lake", 106: "Ice Lake", 143: "Sapphire Rapids", 207: "Emerald Rapids", 173: "Granite Rapids"}
"""Server chips of family 6 by model; Cascade Lake stands for Skylake and Cooper Lake too."""


def chip(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The generation, such as "Zen 3", else vendor, family and model, such as "GenuineIntel 6 79". "unknown" without these fields.
    Some clouds hide the model of a Xeon: one that has AMX is called by that."""
    pairs = (line.partition(":") for line in cpuinfo.read_text().split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        vendor, family, model = fields["vendor_id"], int(fields["cpu family"]), int(fields["model"])
    except (KeyError, ValueError):
        return "unknown"
    other = f"{vendor} {family} {model}"
    if vendor == "GenuineIntel" and family == 6:
        return _INTEL.get(model, "Xeon with AMX" if "amx_tile" in fields.get("flags", "").split() else other)
    return _AMD.get(family, {}).get(model >> 4, other) if vendor == "AuthenticAMD" else other


def slug(name: str) -> str:
    """The folder name of a chip."""
    return name.lower().replace(" ", "-")
