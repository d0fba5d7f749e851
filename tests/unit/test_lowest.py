"""What CI installs as the oldest versions is what pyproject.toml says.

Source: issue "The five promises", Security ("a lower bound for each dependency tested in CI").
"""

from __future__ import annotations

import pytest

from tests.support.lowest import declared, installed, lowest


def test_a_lower_bound_becomes_the_version() -> None:
    """Upper bounds go, extras stay."""
    assert lowest(["a>=1", "b[c]>=6.4,<9", "d-e >= 2.0.1"]) == ["a==1", "b[c]==6.4", "d-e==2.0.1"]


@pytest.mark.parametrize("requirement", ["a", "a<2", "a==1", "a>1", "a>=1; python_version > '3'", "a>=1,!=2"])
def test_another_form_is_an_error(requirement: str) -> None:
    """A dependency without a plain lower bound would not be tried with its oldest version."""
    with pytest.raises(ValueError, match="expected name>=version"):
        lowest([requirement])


def test_every_dependency_has_a_lower_bound() -> None:
    """Each is in the short run of CI."""
    assert len(lowest(declared())) == len(declared()) >= 7


def test_what_is_installed_is_told_with_what_it_needs() -> None:
    """The audit looks at dependencies of dependencies, too, and not at tools of the tests."""
    found = installed(declared())
    assert {"redis", "hiredis", "pydantic", "pydantic_core", "structlog"} <= set(found)
    assert "pytest" not in found
