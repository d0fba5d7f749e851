"""`flow add` and `flow show` on a real server: what they print, what they write, what they refuse."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.cli import main
from echomq_worker.identity import group_for, is_branded
from tests.support.plain import job
from tests.support.valkey import ValkeyServer

Cli = Callable[..., tuple[int, str, str]]
ROOT, CHILD, LEAF = job(1), job(2), job(3)
FLOW = {
    "queue": "reports",
    "payload": {"month": 5},
    "id": ROOT,
    "children": [
        {
            "queue": "pages",
            "payload": [1, "zoë"],
            "id": CHILD,
            "group": "tenant-7",
            "policy": "id",
            "children": [{"queue": "pages", "payload": None, "id": LEAF}],
        },
    ],
}


@pytest.fixture
def cli(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line against the session's server: exit code, stdout, stderr."""
    monkeypatch.setenv("ECHOMQ_URL", url)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[object], str]:
    """Writes a value as JSON, or bytes as they are, and answers where."""

    def write(value: object) -> str:
        path = tmp_path / "flow.json"
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return str(path)

    return write


def rows(server: ValkeyServer, queue: str, id: str) -> dict[str, str]:
    """A row as another client sees it."""
    fields: Any = server.admin.hgetall(f"emq:{{{queue}}}:job:{id}")
    return {name.decode(): value.decode() for name, value in fields.items()}


def test_add_prints_the_roots_id_and_writes_the_tree(
    cli: Cli, server: ValkeyServer, file: Callable[[object], str]
) -> None:
    """Payloads as compact JSON, a group by any text, policy and parents as the file has them."""
    assert cli("flow", "add", file(FLOW)) == (0, f"{ROOT}\n", "")

    assert rows(server, "reports", ROOT)["payload"] == '{"month":5}'
    child = rows(server, "pages", CHILD)
    assert child.pop("children")
    assert child == {
        "state": "awaiting_children",
        "attempts": "0",
        "payload": '[1,"zoë"]',
        "parent": ROOT,
        "parent_queue": "reports",
        "parent_policy": "id",
        "group": group_for("tenant-7"),
    }
    assert rows(server, "pages", LEAF)["payload"] == "null"
    assert server.admin.zrange("emq:{pages}:pending", 0, -1) == [LEAF.encode()]


def test_added_again_it_says_so(cli: Cli, file: Callable[[object], str]) -> None:
    """The same ids, code 0, a line on stderr; --json tells what was admitted."""
    path = file(FLOW)
    first = json.loads(cli("flow", "add", path, "--json")[1])
    again = cli("flow", "add", path)

    assert (first["id"], first["admitted"], first["children"][0]["children"][0]["id"]) == (ROOT, True, LEAF)
    assert again[:2] == (0, f"{ROOT}\n")
    assert again[2].startswith("nothing was added: ")


def test_a_list_of_flows_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each root; ids are minted where none are given; an empty list is none."""
    flows = [{"queue": "q", "payload": n, "children": [{"queue": "q", "payload": n}]} for n in range(3)]
    for given, count in ((flows, 3), ([], 0)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(given).encode())))
        code, out, _ = cli("flow", "add", "-")
        assert (code, len(out.split()), all(map(is_branded, out.split()))) == (0, count, True)


def nested(levels: int) -> dict[str, Any]:
    """A flow of so many levels."""
    node: dict[str, Any] = {"queue": "q", "payload": 1}
    for _ in range(levels - 1):
        node = {"queue": "q", "payload": 1, "children": [node]}
    return node


def changed(**fields: Any) -> dict[str, Any]:
    """The flow with another child."""
    return {**FLOW, "children": [{"queue": "q", "payload": 1, **fields}]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "Expecting value"),
        (b"{", "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"queue":"q","payload":NaN}', "NaN is no JSON"),
        (5, "flow.json: expected an object with queue, payload and, as they apply, children, id, group, policy"),
        ([5], "[0]: expected an object"),
        ({"queue": "q"}, "expected an object"),
        ({**FLOW, "more": 1}, "expected an object"),
        ({"queue": "q", "payload": 1}, "children: expected one or more"),
        ({"queue": "q", "payload": 1, "children": []}, "children: expected one or more"),
        ({"queue": "q", "payload": 1, "children": {}}, "children: expected a list"),
        (changed(queue="bad queue"), "children[0]: queue 'bad queue'"),
        (changed(queue=5), "children[0]: queue 5"),
        (changed(queue="emq"), "children[0]: queue 'emq'"),
        (changed(id="JOB1"), "children[0]: id 'JOB1'"),
        (changed(id=5), "children[0]: id 5"),
        (changed(id="USR0KHTOWnGLuC"), "EMQKIND job id must be JOB-namespaced: USR0KHTOWnGLuC"),
        (changed(id=ROOT), "an id stands twice"),
        (changed(group=""), "children[0]: group: expected a text"),
        (changed(group=7), "children[0]: group: expected a text"),
        (changed(policy="maybe"), "children[0]: policy: expected 'fp' or 'id'"),
        (changed(policy=["fp"]), "children[0]: policy: expected 'fp' or 'id'"),
        (changed(payload="\ud800"), "children[0]: payload: expected text that UTF-8 can carry"),
        (changed(children=[{"queue": "q"}]), "children[0].children[0]: expected an object"),
        ([FLOW, nested(9)], "[1]" + ".children[0]" * 8 + ": expected at most 8 levels"),
    ],
)
def test_what_add_refuses_writes_nothing(
    cli: Cli, server: ValkeyServer, file: Callable[[object], str], value: object, said: str
) -> None:
    """One line that names the place and what was expected, 2, and not a key is written."""
    code, out, err = cli("flow", "add", file(value))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert server.admin.keys() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add",), "Missing argument 'FILE'"),
        (("add", "missing.json"), "FILE='missing.json': No such file"),
        (("add", "."), "FILE='.': Is a directory"),
        (("add", "a\0b"), "expected a file that can be read"),
        (("show", "bad queue", ROOT), "queue 'bad queue'"),
        (("show", "q", "JOB1"), "id 'JOB1'"),
        (("show", "q"), "Missing argument 'ID'"),
        (("show", "q", ROOT, "--limit", "0"), "--limit"),
        (("what",), "No such command"),
    ],
)
def test_wrong_command_lines(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    """One line and 2."""
    code, out, err = cli("flow", *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_row_of_another_parent_is_a_failure(cli: Cli, server: ValkeyServer, file: Callable[[object], str]) -> None:
    """Code 1 and one line: the input is right, the server's state is not."""
    server.admin.hset(f"emq:{{pages}}:job:{CHILD}", mapping={"state": "pending", "attempts": "0"})

    code, out, err = cli("flow", "add", file(FLOW))

    assert (code, out) == (1, "")
    assert err.startswith(f"echomq-worker: EMQSTATE flow row names another parent: {CHILD} in pages (the id is taken: ")


def test_show_prints_the_tree(cli: Cli, server: ValkeyServer, file: Callable[[object], str]) -> None:
    """A line for each job, indented by its level, across queues; --json is the same tree."""
    cli("flow", "add", file(FLOW))
    server.admin.hset(f"emq:{{pages}}:job:{CHILD}:processed", job(9), "x" * 100)

    code, out, _ = cli("flow", "show", "reports", ROOT)

    assert code == 0
    lines = out.splitlines()
    assert [line.split() for line in lines[1:4]] == [
        [ROOT, "reports", "awaiting_children", "1", "-"],
        [CHILD, "pages", "awaiting_children", "1", "-"],
        [LEAF, "pages", "pending", "-", "-"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2, 4, 4]
    assert lines[4].split() == [job(9), "pages", "done", "-", f"{'x' * 60}..."]
    tree = json.loads(cli("flow", "show", "reports", ROOT, "--json")[1])
    assert tree["children"][0]["children"][0]["state"] == "pending"


def test_show_cuts_long_lists_and_what_it_prints_is_harmless(cli: Cli, server: ValkeyServer) -> None:
    """So many children of each; escapes of a result do not reach the terminal."""
    key = f"emq:{{q}}:job:{ROOT}"
    server.admin.hset(key, mapping={"state": "dead", "attempts": "0", "last_error": "\x1b[31mred"})
    server.admin.hset(f"{key}:processed", mapping={job(n): "1" for n in range(10, 20)})

    _, out, _ = cli("flow", "show", "q", ROOT, "--limit", "3")

    assert "\x1b" not in out
    assert out.splitlines()[-1].strip().startswith("and 7 more")
    assert len(out.splitlines()) == 6


def test_show_of_no_job(cli: Cli) -> None:
    """Code 1, a line on stderr."""
    code, out, err = cli("flow", "show", "q", ROOT)

    assert (code, out) == (1, "")
    assert err == f"{ROOT}: no such job in q; a completed job has no row (job list shows those that there are)\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no terminal to play")
def test_add_reads_from_a_terminal_with_a_hint(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts it without a pipe is told what it waits for."""

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(io.BytesIO(b"[]")))

    assert "end with Ctrl-D" in cli("flow", "add", "-")[2]
