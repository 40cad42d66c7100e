"""Entry point of a SageMaker container: `python -m tgi_core.cli.sagemaker serve`."""

from __future__ import annotations

import os
import sys

from tgi_core.cli import run, tgi
from tgi_core.settings.sagemaker import sagemaker


def main() -> None:
    """Serve the model configured by SageMaker's environment variables on SageMaker's port."""
    run(_serve, "tgi")


def _serve() -> None:
    arguments, environ = sagemaker(sys.argv[1:], os.environ)
    os.environ.update(environ)
    tgi(arguments)


if __name__ == "__main__":
    main()
