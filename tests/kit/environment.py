"""An environment of its own for packages under test: it sees what this one has, and installs beside it."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_COMMANDS = {
    "pip": "from pip._internal.cli.main import main",
    "pytest": "from pytest import console_main as main",
    "tgi": "from tgi_core.cli import main",
    "tgi-conformance": "from tgi_conformance.cli import main",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment without an index: what is installed into it comes from folders."""

    home: Path

    @classmethod
    def make(cls, home: Path) -> Environment:
        """A fresh one; its site-packages come before this environment's."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        folder = next((home / "lib").glob("python*/site-packages"))
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        (folder / "outer.pth").write_text("\n".join(lines) + "\n")
        for name, found in _COMMANDS.items():
            script = home / "bin" / name
            script.write_text(f"#!{home}/bin/python\nimport sys\n{found}\nsys.exit(main())\n")
            script.chmod(0o755)
        return cls(home)

    def run(self, *command: str, cwd: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """A command of this environment."""
        first = str(self.home / "bin" / command[0])
        program = (first if Path(first).exists() else command[0], *command[1:])
        return subprocess.run(program, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=self.variables, check=False)

    def install(self, *arguments: str, cwd: Path | None = None) -> None:
        """pip install, of folders."""
        done = self.run("pip", "install", "-q", *arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr

    @property
    def variables(self) -> dict[str, str]:
        """PATH begins here; pip asks no index and builds with what is there."""
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return dict(os.environ) | offline | {"PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"}
