"""The module of the native twins: its sources as the package carries them, built where this machine has a compiler.

Source: protocol section 7; issue "The native twins" (`echomq-worker native build|path`). A module is for one machine's
system and processor, so a wheel holds the sources, and what is built lands in the user's cache unless told otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from echomq_worker.errors import BuildFailed, ConfigError

FILE = "emq.so"
_BUILD_S = 300.0
_SHOWN_LINES = 3


def sources() -> Path:
    """The folder with the C files and their Makefile. Raises ConfigError where the package was packed without them."""
    with as_file(files("echomq_worker") / "native") as folder:
        if not (folder / "Makefile").is_file():
            raise ConfigError(f"the module's sources: not in {folder}, expected a wheel or sdist of this project")
        return folder


def default_folder() -> Path:
    """Where a module of these very sources is kept: `$XDG_CACHE_HOME` or `~/.cache`, by what the sources hold."""
    digest = hashlib.sha256()
    for path in sorted(sources().iterdir()):
        if path.suffix in {".c", ".h"} or path.name == "Makefile":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(cache) / "echomq-worker" / f"native-{digest.hexdigest()[:16]}"


def built() -> Path | None:
    """The module that `build` has made of these sources in the default folder, or None."""
    path = default_folder() / FILE
    return path if path.is_file() else None


def build(folder: Path | None = None) -> Path:
    """Build it into `folder` (made where it is missing; None: the default one), and return its path.

    Blocks, for seconds. A module that a server has loaded is replaced, never written over. Raises ConfigError where the
    folder cannot be written or make or the compiler is missing, BuildFailed with the compiler's first error.
    """
    target = (folder or default_folder()).absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".emq-") as scratch:
            made = Path(scratch) / FILE
            _make(made)
            return made.replace(target / FILE)
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}, expected a folder that can be written") from error


def _make(made: Path) -> None:
    make, compiler = shutil.which("make"), shutil.which(os.environ.get("CC", "cc"))
    if make is None or compiler is None:
        lacks = "make" if make is None else os.environ.get("CC", "a C compiler (cc)")
        raise ConfigError(f"building the module needs {lacks}: expected apt-get install gcc libc6-dev make, or alike")
    # Warnings of a compiler that nobody has tried yet are no reason not to build.
    command = [make, "-s", "-C", str(sources()), f"OUT={made}", f"CC={compiler}", "WERROR="]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"building the module: not done after {_BUILD_S:.0f} s") from error
    if done.returncode != 0 or not made.is_file():
        raise BuildFailed(f"building the module: {_first_error(done.stdout + done.stderr)}")


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return " / ".join((errors or lines or ["no word from make"])[:_SHOWN_LINES])
