"""Virtual environments of the peers: made once under a root, kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

# What pip is asked for; uvloop where the peer takes it by itself is its own affair.
PACKAGES: dict[str, tuple[str, ...]] = {
    "arq": ("arq", "hiredis"),
    "saq": ("saq[redis]", "hiredis", "typing_extensions"),
    "streaq": ("streaq",),
    "taskiq": ("taskiq", "taskiq-redis", "hiredis"),
    "dramatiq": ("dramatiq[redis]", "hiredis"),
    "celery": ("celery[redis]", "hiredis"),
    "ardiq": ("ardiq",),
    "bullmq": ("bullmq", "hiredis"),
    "repid": ("repid[redis]", "hiredis", "typing_extensions"),
}
# Those that need a newer Python than the oldest that we support.
_NEEDS = {"ardiq": (3, 12)}


def python_of(root: Path, name: str, base: str = sys.executable) -> Path:
    """The peer's interpreter, made with `base` and installed on first use. Raises RuntimeError with what pip said."""
    home = root / name
    made = home / "bin" / "python"
    if not made.exists():
        least = _NEEDS.get(name, (3, 11))
        if subprocess.run([base, "-c", f"import sys; sys.exit(sys.version_info < {least})"], check=False).returncode:
            raise RuntimeError(f"{name}: needs Python {least[0]}.{least[1]}, give --python {name}=PATH")
        for command in ([base, "-m", "venv", str(home)], [str(made), "-m", "pip", "install", "-q", *PACKAGES[name]]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                shutil.rmtree(home, ignore_errors=True)
                raise RuntimeError(f"{name}: {' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")
    return made


def version_of(root: Path, name: str) -> str:
    """The version that is installed."""
    package = PACKAGES[name][0].partition("[")[0]
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python_of(root, name), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
