"""`python -m tgi_core` is `tgi`."""

from tgi_core.cli import main

main()
