"""Users with the published rules: what they reach and what not, and that the rules know every command that is sent.

Source: issue "The five promises", Topologies and Security.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echomq_worker import acl
from echomq_worker.connector import connect
from echomq_worker.errors import AuthenticationFailed, ConfigError, EchoMQError, InvalidQueueName
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import FENCE_KEY, Keys
from echomq_worker.script import evaluate, scripts
from tests.support.cli import Cli, cli
from tests.support.keyspace import text
from tests.support.plain import job
from tests.support.roles import RoleServer
from tests.support.valkey import ValkeyServer

__all__ = ["cli"]

PACKAGE = Path(acl.__file__).parent
# Sent before a user is anybody, or to sentinels, which have users of their own; PUBSUB is a name in a table
# only. CONFIG GET is tried, and INFO where it is refused.
NOT_OF_A_ROLE = {
    *("auth", "hello", "sentinel|get-master-addr-by-name", "sentinel|sentinels", "pubsub|channels"),
    # What a node is, for a probe, which takes a refusal for an answer.
    *("config|get", "cluster|myid"),
}
# The run for tests, the tests' own fixtures, the private server of the demo, and answers of a server by their words.
ELSEWHERE = ("conformance/", "testing.py", "embedded.py", "demo_app.py", "acl.py", "cli/acl.py", "cli/hints.py")


@pytest.fixture
def known(server: ValkeyServer) -> frozenset[str]:
    """Every command of the server, and every subcommand as `container|sub`."""
    admin: Any = server.admin
    return frozenset(text(name).lower() for name in admin.execute_command("COMMAND LIST"))


@pytest.fixture
def limited() -> Iterator[RoleServer]:
    """A server with a user of all roles, whose queue is `a`."""
    server = RoleServer(*acl.roles(), queues=("a",))
    try:
        server.start()
        yield server
    finally:
        server.close()


def _sent(tree: ast.AST, known: frozenset[str]) -> Iterator[str]:
    """The commands that stand first in a tuple or a call, in capitals."""
    for node in ast.walk(tree):
        values = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        words = [value.value if isinstance(value, ast.Constant) else None for value in values[:2]]
        first = words[0] if words else None
        if not isinstance(first, str) or not first.isupper() or first.lower() not in known:
            continue
        second = words[1] if len(words) > 1 else None
        pair = f"{first}|{second!s}".lower()
        yield pair if pair in known else first.lower()


def test_every_command_of_the_package_is_in_the_rules(known: frozenset[str]) -> None:
    """A command that somebody adds to the package belongs to a role, or to what `--also` names."""
    sent: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ELSEWHERE):
            sent.update(dict.fromkeys(_sent(ast.parse(path.read_text()), known), name))
    assert len(sent) > 30, "the source is read at all"
    permitted = {*acl.commands(acl.roles(), acl.extras()), *NOT_OF_A_ROLE}
    assert {name: where for name, where in sent.items() if name not in permitted} == {}


def test_every_command_of_a_script_is_found(known: frozenset[str]) -> None:
    """Whatever is quoted in a script and is a command of the server is what it calls: none hides in a variable."""
    for name, script in scripts().items():
        source = re.sub(r"--.*$", "", script.source, flags=re.MULTILINE)
        quoted = {word.lower() for word in re.findall(r"'([A-Z]+)'", source)}
        assert quoted & known == acl.called(name), name


async def test_a_user_of_one_queue_reaches_no_other(limited: RoleServer) -> None:
    """Its own queue is served; of another nothing is read, written, published or heard: not by a verb, and not by a
    script that is given the other queue's base behind keys of its own.
    """
    limited.claim_fence()
    mine, other = Keys("a"), Keys("b")
    async with connect(limited.url) as wire:
        assert (await Jobs(wire).enqueue("a", "x")).admitted
        with pytest.raises(EchoMQError, match="NOPERM"):
            await Jobs(wire).enqueue("b", "x")
        with pytest.raises(EchoMQError, match=r"No permissions to access a key|NOPERM|ACL"):
            await evaluate(wire, "enqueue_many", (mine.pending,), (other.base, job(1), "x"))
        for command in (("ZCARD", other.pending), ("PUBLISH", other.events, "x"), ("SET", "stray", "x"), ("FLUSHALL",)):
            with pytest.raises(EchoMQError, match="NOPERM"):
                await wire.call(*command)
    keys: Any = limited.admin.keys("*")
    assert {text(key)[: len(mine.base)] for key in keys} == {mine.base, FENCE_KEY[: len(mine.base)]}


@pytest.mark.parametrize("role", ["producer", "worker"])
async def test_who_may_only_read_the_fence_does_not_claim_it(role: str) -> None:
    """On a deployment without a fence the user is refused with a line that names the key; nothing is written."""
    server = RoleServer(role)
    try:
        server.start()
        with pytest.raises(AuthenticationFailed, match=r"\{emq\}:version cannot .*: NOPERM .*; there is none yet: "):
            async with connect(server.url):
                pass
        assert server.admin.keys("*") == []
    finally:
        server.close()


def test_a_password_is_not_in_the_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes by standard input; what is printed is its SHA-256, which ACL SETUSER takes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("open sesame\n"))
    code, out, err = cli("acl", "worker", "producer", "--queue", "a", "--user", "mailer", "--password-stdin")
    assert (code, err) == (0, "")
    assert out.startswith("ACL SETUSER mailer reset on #" + hashlib.sha256(b"open sesame").hexdigest() + " ~emq:{a}:* ")
    assert "sesame" not in out
    assert out.count("\n") == 1


def test_an_empty_password_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, exit code 2, no rules."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli("acl", "worker", "--password-stdin") == (
        2,
        "",
        "echomq-worker: --password-stdin: expected one line of 1..1024 characters\n",
    )


def test_the_help_names_all_that_may_be_permitted_besides(cli: Cli) -> None:
    """A word that only the code knows is found by nobody."""
    _, out, _ = cli("acl", "--help")

    assert [word for word in acl.extras() if word not in out] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody",), "role 'nobody': expected one of producer, worker, operator"),
        (("worker", "--also", "all"), "--also 'all': expected one of database"),
        (("worker", "--user", "a b"), "user 'a b': expected"),
        (("worker", "--queue", "a b"), "queue 'a b': expected"),
    ],
)
def test_wrong_words_are_one_line(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    """Nothing is printed that somebody could feed to a server."""
    code, out, err = cli("acl", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_names_are_checked_before_a_rule_is_made() -> None:
    """The function that the command calls refuses the same."""
    with pytest.raises(ConfigError, match="role 'x'"):
        acl.commands(["x"])
    with pytest.raises(InvalidQueueName):
        acl.rules(["worker"], ["*"])
    with pytest.raises(ConfigError, match="user"):
        acl.check_user("x~")


def test_check_as_the_user_of_the_url(cli: Cli) -> None:
    """`check` looks at the server; what it may not see there is no failure. Part of the operator's suite."""
    code, out, _ = cli("check", "examples.two_queues:worker")
    assert code == 0
    assert "fence        echomq:3.0.0" in out
