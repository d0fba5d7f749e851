"""Where commands belong in a cluster, as values; and that every command of the package has its place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.cluster_route import (
    ANY,
    EVERY,
    is_transaction,
    may_be_asked,
    route,
    routes,
    slot_of_pattern,
    together,
)
from echomq_worker.errors import InvalidArgument, ServerError
from echomq_worker.keyspace import Keys, slot
from echomq_worker.script import scripts

KEY, OTHER = Keys("q").pending, Keys("other").pending
# On connections of their own, asked of a node that is known already, or of a private server of somebody's tests.
_NOT_OVER_A_WIRE = {
    "ASKING",
    "AUTH",
    "BLPOP",
    "CLUSTER",
    "COMMAND",
    "FLUSHALL",
    "HELLO",
    "ROLE",
    "SCAN",
    "SELECT",
    "SENTINEL",
    "SUBSCRIBE",
}
_NO_COMMANDS = {"BYSCORE", "FAILED", "MOVED", "NOAUTH", "USR", "WRONGTYPE"}
_WORD = re.compile("[A-Z]{3,}")


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("GET", KEY), slot(KEY)),
        (("get", KEY), slot(KEY)),
        ((b"HMGET", KEY.encode(), "a", "b"), slot(KEY)),
        (("ZRANGE", memoryview(KEY.encode()), 0, -1), slot(KEY)),
        (("UNLINK", KEY, "emq:{q}:active"), slot(KEY)),
        (("EVALSHA", "0" * 40, 2, KEY, OTHER, "an argument"), slot(KEY)),
        (("EVAL", "return 1", "1", KEY), slot(KEY)),
        (("PUBLISH", "emq:{q}:events", "{}"), slot(KEY)),
        (("PUBSUB", "NUMSUB", "emq:{q}:events"), slot(KEY)),
        (("PING",), ANY),
        (("TIME",), ANY),
        (("CLIENT", "LIST"), ANY),
        (("CONFIG", "GET", "maxmemory-policy"), ANY),
        (("SCRIPT", "LOAD", "return 1"), EVERY),
        (("DBSIZE",), EVERY),
    ],
)
def test_where_a_command_belongs(command: tuple[Any, ...], where: int) -> None:
    """With the owner of its first key, of its channel, anywhere, or on every primary."""
    assert route(command) == where


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("GET",),
        ("FLUSHALL",),
        ("XADD", KEY, "*", "a", "b"),
        ("EVALSHA", "0" * 40, 0),
        ("EVAL", "return 1", 0, "an argument"),
        ("SCRIPT", "FLUSH"),
        ("PUBSUB", "NUMSUB"),
        ("SCAN", 0),
    ],
)
def test_what_has_no_place_is_refused(command: tuple[Any, ...]) -> None:
    """No guess: a command that nobody has given a place, or that lacks the key that it would go by."""
    with pytest.raises(InvalidArgument, match="command"):
        route(command)


def test_a_command_without_a_key_goes_along_with_the_first_that_has_one() -> None:
    """So TIME beside a key of a queue is the clock of its owner; alone it is anybody's."""
    assert routes([("TIME",), ("GET", KEY), ("GET", OTHER)]) == [slot(KEY), slot(KEY), slot(OTHER)]
    assert routes([("TIME",), ("PING",)]) == [ANY, ANY]
    assert routes([("DBSIZE",), ("TIME",)]) == [EVERY, ANY]


def test_a_transaction_stays_on_one_node() -> None:
    """MULTI and EXEC go with their keys, which have to share a slot."""
    commands = [("MULTI",), ("SET", KEY, 1), ("EXEC",)]
    assert is_transaction(commands)
    assert routes(commands) == [slot(KEY)] * 3
    with pytest.raises(InvalidArgument, match="MULTI"):
        routes([("MULTI",), ("SET", KEY, 1), ("SET", OTHER, 1), ("EXEC",)])


def test_ask_is_followed_for_single_keys_only() -> None:
    """A script derives keys, some of which may be with the old node still: to it they would seem not to be there."""
    assert may_be_asked(("HGET", KEY, "state"))
    assert may_be_asked(("UNLINK", KEY))
    assert not may_be_asked(("UNLINK", KEY, "emq:{q}:active"))
    assert not may_be_asked(("EVALSHA", "0" * 40, 1, KEY))
    assert not may_be_asked(("EVAL", "return 1", 1, KEY))


@pytest.mark.parametrize(
    ("pattern", "tag"),
    [
        ("emq:{q}:*", "q"),
        (b"emq:{a.b-c}:job:?", "a.b-c"),
        ("emq:{*}:*", None),
        ("emq:{q.*", None),
        ("emq:*:{q}", None),
        ("*", None),
        ("emq:{}:*", None),
    ],
)
def test_the_slot_of_a_pattern(pattern: str | bytes, tag: str | None) -> None:
    """All keys like it share a slot where its hash tag stands before anything that matches more than itself."""
    assert slot_of_pattern(pattern) == (None if tag is None else slot(f"{{{tag}}}"))


def test_one_reply_is_made_of_those_of_all_primaries() -> None:
    """The sizes are added, of equal replies one is taken, and an error of one is the reply."""
    error = ServerError("ERR no")
    assert together(("DBSIZE",), [1, 2, 3]) == 6
    assert together(("SCRIPT", "LOAD", ""), [b"sha", b"sha"]) == b"sha"
    assert together(("SCRIPT", "LOAD", ""), [b"sha", error]) is error


def _sent(tree: ast.AST) -> Iterator[str]:
    """Words in capitals that stand first in a tuple, or first in a `call`."""
    for node in ast.walk(tree):
        first: ast.expr | None = None
        if isinstance(node, ast.Tuple) and node.elts:
            first = node.elts[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "call":
            first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and _WORD.fullmatch(first.value):
            yield first.value


def test_every_command_of_the_package_has_its_place() -> None:
    """What is sent over a Wire anywhere in the package is in the table; a new command fails here until it is."""
    folder = Path(str(files("echomq_worker")))
    # The table itself, and answers of a server by their words.
    sources = [path for path in folder.rglob("*.py") if path.name not in {"cluster_route.py", "hints.py"}]
    found = {word for path in sources for word in _sent(ast.parse(path.read_text()))}
    assert {"HMGET", "ZRANGE", "LRANGE", "EVALSHA", "TIME", "SCRIPT", "DBSIZE"} <= found
    longest = {"EVAL": (1, KEY), "EVALSHA": (1, KEY), "SCRIPT": (), "PUBSUB": (KEY,)}
    second = {"SCRIPT": "LOAD", "PUBSUB": "NUMSUB", "CLIENT": "LIST"}

    for word in found - _NOT_OVER_A_WIRE - _NO_COMMANDS:
        assert isinstance(route((word, second.get(word, KEY), *longest.get(word, ()))), int), word


def test_every_script_has_a_key_of_its_queue_first() -> None:
    """By which it is sent to the owner of the queue's slot, as all keys that it derives are there too."""
    for script in scripts().values():
        header = [line for line in script.source.splitlines() if line.startswith("-- KEYS[1")]
        assert len(header) == 1, script.name
        assert header[0].split()[2].startswith("emq:{q}:"), script.name
