"""Random calls of every command, the module's memory checked. Long: `python -m tests.support.native_fuzz`."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.support.native import module
from tests.support.native_fuzz import checked_server, fuzz
from tests.support.native_words import shapes


@pytest.mark.skipif(sys.platform != "linux", reason="how the sanitizer gets into the server is Linux's way")
def test_random_calls_find_nothing() -> None:
    """No finding of AddressSanitizer, no crash, nothing kept; the module is unloaded and loaded again on the way."""
    module()
    assert shutil.which("cc")
    with checked_server() as server:
        tally = fuzz(server, calls=3_000, seed=8)
    assert tally["commands"] == len(shapes())
    # They get far: half of them are no refusals.
    assert tally["values"] > 1_000, tally
