"""Runs the tests of the native kernels on libraries built with AddressSanitizer and UndefinedBehaviorSanitizer.

    python scripts/test_native_asan.py [pytest arguments]

The libraries are built in a separate cache directory, under the names that the tests expect. Leak detection is off, because
it would report the interpreter's leaks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tgi_backend_cpu import building
from tgi_backend_cpu.building import cpu_flags

OPTIONS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1", "-O1")
TESTS = (
    "tests/cpu/test_gemm.py",
    "tests/cpu/test_int8.py",
    "tests/cpu/test_tiles.py",
    "tests/cpu/test_attention_kernel.py",
    "tests/cpu/test_byte_cache.py",
    "tests/cpu/test_sampling.py",
    "tests/cpu/test_decoder.py",
    "tests/cpu/test_adapters.py",
)


def runtime(name: str) -> str:
    """Path of one of the compiler's libraries."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return str(Path(found.strip()).resolve())


def main() -> int:
    """Build every variant that this CPU supports, then run the tests with the sanitizer preloaded."""
    building.TIME_LIMIT = 3600  # compiling with sanitizers is slow
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        os.environ["XDG_CACHE_HOME"] = folder
        building.cache_folder().mkdir(mode=0o700, parents=True)
        for variant in (*building.VARIANTS, building.EMULATED):
            if variant.cpu_flags <= cpu_flags():
                building.build(variant, building.cache_folder() / f"{variant.name}-{building.source_hash(variant)}.so", *OPTIONS)
        # Compilers other than g++ keep the run-time library elsewhere; it must be loaded before Python's libraries.
        environment["LD_PRELOAD"] = " ".join(runtime(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so"))
        environment["ASAN_OPTIONS"] = "detect_leaks=0:halt_on_error=1"
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1"
        arguments = sys.argv[1:] or ["-q", "-x", "-p", "no:cacheprovider", "--timeout=1800", *TESTS]
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
