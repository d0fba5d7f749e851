"""The loader of scripts: headers, includes, arity. What it sends is tested on a server in tests/edges."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.errors import ScriptContract, ScriptMissing
from echomq_worker.script import evaluate, evaluate_many, load, parse, scripts

HEADER = """\
-- verb: does what it says.
-- More about it.
-- KEYS[1] emq:{q}:pending  the set
-- ARGV[1] id
-- ARGV[2...] id, token  pairs
-- returns 1 done | 0 not
"""


class Unused:
    """A wire that must not be reached."""

    async def call(self, *args: Any) -> Any:
        """Fail."""
        raise AssertionError(f"sent: {args}")

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Fail."""
        raise AssertionError(f"sent: {commands}")


def test_header_states_the_counts_and_the_tail() -> None:
    """KEYS and ARGV lines are counted, `...` makes a variadic tail that is not counted, prose lines are let be."""
    script = parse("verb", HEADER + "return 1\n", {})
    assert (script.keys, script.keys_variadic, script.args, script.args_variadic) == (1, False, 1, True)


def test_sha_is_that_of_the_text_as_sent() -> None:
    """The sha is computed over the text with its includes, so that EVALSHA finds what EVAL loaded."""
    script = parse("verb", HEADER + "-- include: now\nreturn now_ms()", {"now": "local function now_ms() end\n"})
    assert "local function now_ms() end" in script.source
    assert "include:" not in script.source
    assert hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest() == script.sha


def test_an_include_comes_once_with_what_it_includes_itself() -> None:
    """Includes nest, and one that is named twice is in the text once, also when they name each other."""
    includes = {"a": "-- include: b\nlocal a = 1", "b": "-- include: a\nlocal b = 2"}
    script = parse("verb", HEADER + "-- include: a\n-- include: b\nreturn a + b", includes)
    assert script.source.count("local a") == script.source.count("local b") == 1
    assert script.source.index("local b") < script.source.index("local a")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "script verb, line 1: expected '-- verb:"),
        ("return 1", "script verb, line 1: expected '-- verb:"),
        (HEADER.replace("-- verb:", "-- other:"), "script verb, line 1: expected '-- verb:"),
        ("-- verb:\n-- returns 1\n", "script verb, line 1: expected '-- verb:"),
        (HEADER.replace("-- returns", "-- gives"), "script verb: its header has no line such as '-- returns"),
        (HEADER.replace("KEYS[1]", "KEYS[2]"), "script verb, line 3: KEYS[2], expected KEYS[1]"),
        (
            HEADER.replace("ARGV[1] id", "ARGV[1] id\n-- ARGV[1] again"),
            "script verb, line 5: ARGV[1], expected ARGV[2]",
        ),
        (HEADER.replace("ARGV[2...]", "ARGV[3...]"), "script verb, line 5: ARGV[3], expected ARGV[2]"),
        (HEADER + "-- ARGV[3] more\n", "script verb, line 7: nothing can follow ARGV[2...]"),
        (HEADER.replace("KEYS[1] emq:{q}:pending  the set", "KEYS[1]"), "script verb, line 3: expected '-- KEYS[1]"),
        (HEADER.replace("KEYS[1]", "KEYS [1]"), "script verb, line 3: expected '-- KEYS[1]"),
        (HEADER.replace("ARGV[1]", "argv[1]"), "script verb, line 4: expected '-- KEYS[1]"),
        (HEADER + "return KEYS[2]", "script verb: it uses KEYS[2], its header states 1"),
        (HEADER + "return ARGV[0]", "script verb: it uses ARGV[0], its header states 1"),
    ],
)
def test_a_header_that_cannot_be_trusted_is_refused(text: str, complaint: str) -> None:
    """Each fault of a header is one line that names the script, the line and what was expected."""
    with pytest.raises(ScriptContract) as caught:
        parse("verb", text, {})
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_variadic_tail_may_be_used_by_number_and_comments_do_not_count() -> None:
    """`ARGV[7]` is fine behind `ARGV[2...]`, and a KEYS[9] in a comment is not a use."""
    assert parse("verb", HEADER + "return ARGV[7] -- not KEYS[9]", {}).args_variadic


def test_a_missing_include_is_named() -> None:
    """An include that is not there stops the program, with its file's name."""
    with pytest.raises(ScriptMissing, match=r"script verb: include/lane\.lua is not there"):
        parse("verb", HEADER + "-- include: lane\n", {})


def test_a_missing_or_empty_folder_stops_the_program(tmp_path: Path) -> None:
    """There is no empty set of scripts to fall back to."""
    with pytest.raises(ScriptMissing, match=r"the folder .*gone is not there"):
        load(tmp_path / "gone")
    (tmp_path / "notes.txt").write_text("no script")
    with pytest.raises(ScriptMissing, match=r"holds no \*\.lua file"):
        load(tmp_path)


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    """Every *.lua is a script under its file's name; the include folder gives parts, not scripts."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "now.lua").write_text("local now = 1")
    (tmp_path / "verb.lua").write_text(HEADER + "-- include: now\nreturn now")
    (tmp_path / "other.lua").write_text(HEADER.replace("verb", "other") + "return 2")
    found = load(tmp_path)
    assert list(found) == ["other", "verb"]
    assert found["verb"].source.endswith("local now = 1\nreturn now")


def test_the_scripts_of_the_package_keep_their_contracts() -> None:
    """Every script that is shipped can be loaded, and the verbs of protocol section 4 are among them."""
    plain = {"enqueue", "schedule", "claim", "claim_batch", "complete", "retry", "delay", "promote", "reap"}
    ours = {"claim_many", "settle", "release", "disown", "keep", "repeat_fire"}
    assert plain | ours <= set(scripts())
    assert scripts() is scripts(), "read once"


@pytest.mark.parametrize(
    ("name", "keys", "args", "complaint"),
    [
        ("enqueue", ["row"], ["id", "payload"], "script enqueue: 1 keys, its header states 2"),
        ("enqueue", ["row", "pending", "x"], ["id", "payload"], "script enqueue: 3 keys, its header states 2"),
        ("enqueue", ["row", "pending"], ["id"], "script enqueue: 1 arguments, its header states 2"),
        ("enqueue", ["row", "pending"], ["id", "payload", "x"], "script enqueue: 3 arguments, its header states 2"),
        ("settle", ["a", "b", "c", "d"], [], "script settle: 0 arguments, its header states 1 or more"),
    ],
)
async def test_a_call_that_breaks_the_contract_is_not_sent(
    name: str, keys: list[str], args: list[str], complaint: str
) -> None:
    """Too few or too many keys or arguments raise before anything is sent, alone and in a batch."""
    with pytest.raises(ScriptContract) as caught:
        await evaluate(Unused(), name, keys, args)
    assert str(caught.value) == complaint
    with pytest.raises(ScriptContract):
        await evaluate_many(Unused(), [(name, keys, args)])


async def test_an_unknown_script_is_named() -> None:
    """A verb without a script raises ScriptMissing with its name, nothing is sent."""
    with pytest.raises(ScriptMissing, match="script 'nothing': there is none of that name"):
        await evaluate(Unused(), "nothing", [], [])
