"""Write the chart's generated files and, with helm, the plain manifests that it renders: `python -m scripts.deployment [--helm PATH]`."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from scripts.deployment import manifests, values

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tgi-core"
MANIFESTS = ROOT / "deploy" / "kubernetes"


def chart() -> dict[Path, str]:
    """Return the generated files of the chart."""
    general = (Path(__file__).parent / "general.yaml").read_text(encoding="utf-8")
    return {
        CHART / "values.yaml": values.values(general),
        CHART / "values.schema.json": values.schema(general),
        CHART / "files" / "devices.json": values.devices(),
        CHART / "files" / "settings.json": values.settings(),
    }


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", default=shutil.which("helm"), help="helm's program. Default: the one in PATH.")
    helm = parser.parse_args().helm
    for path, text in chart().items():
        path.write_text(text, encoding="utf-8")
    if helm is None:
        sys.exit(
            "helm: not found, so deploy/kubernetes was not written; give --helm PATH (python -m tests.deploy.cluster_tools fetches one)"
        )
    for name, text in manifests.rendered(helm, CHART).items():
        (MANIFESTS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
