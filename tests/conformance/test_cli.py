"""`echomq-worker conformance`: a line for each scenario, a tally, and an exit code that says whether all held."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from echomq_worker.cli import main
from echomq_worker.conformance import scenarios
from echomq_worker.lanes import Lanes
from tests.support.valkey import OwnServer, ValkeyServer

Cli = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def cli(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `conformance` against the session's server: exit code, lines of stdout, stderr."""
    monkeypatch.setenv("ECHOMQ_URL", url)

    def run(*arguments: str) -> tuple[int, list[str], str]:
        code = main(("conformance", *arguments))
        written = capsys.readouterr()
        return code, written.out.splitlines(), written.err

    return run


def test_each_scenario_is_a_line_and_all_a_tally(cli: Cli, server: ValkeyServer) -> None:
    """Name, ok and milliseconds of every scenario, the tally last, nothing on stderr, no key but the fence."""
    code, lines, err = cli()

    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in lines[:-1]] == [[name, "ok"] for name in scenarios()]
    assert all(line.endswith(" ms") for line in lines)
    assert lines[-1].startswith(f"{len(scenarios())} ok, 0 FAILED, 0 not applicable, ")
    assert server.admin.keys() == [b"{emq}:version"]


def test_only_runs_what_is_named(cli: Cli) -> None:
    """In the order given, each once; with --verbose its contract stands below."""
    code, lines, _ = cli("--only", "order", "--only", "fence", "--only", "order", "--verbose")

    assert code == 0
    assert [line.split()[0] for line in lines[:-1:2]] == ["order", "fence"]
    assert lines[1].strip() == scenarios()["order"].contract
    assert lines[-1].startswith("2 ok, ")


def test_json_is_a_line_for_each_and_one_for_the_tally(cli: Cli) -> None:
    """Objects with name, contract, result, ms and what was said; the counts last."""
    code, lines, _ = cli("--only", "mint", "--json")
    one, tally = map(json.loads, lines)

    assert code == 0
    assert (one.pop("ms") >= 0, tally.pop("ms") >= 0) == (True, True)
    assert one == {"name": "mint", "contract": scenarios()["mint"].contract, "result": "ok", "said": ""}
    assert tally == {"ok": 1, "failed": 0, "not_applicable": 0}


def test_a_failure_is_said_and_ends_with_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found and what was expected stand on the scenario's line; the others run all the same."""

    async def wrong(_lanes: Lanes, _queue: str, _group: str) -> int:
        return 7

    monkeypatch.setattr(Lanes, "depth", wrong)

    code, lines, err = cli("--only", "lane_depth", "--only", "order")

    assert (code, err) == (1, "")
    assert lines[0].split()[:2] == ["lane_depth", "FAILED"]
    assert lines[0].endswith("the depth after a claim: found 7, expected 2")
    assert lines[1].split()[:2] == ["order", "ok"]
    assert lines[2].startswith("1 ok, 1 FAILED, 0 not applicable, ")


def test_lines_of_workers_do_not_show(cli: Cli) -> None:
    """Jobs that fail on purpose leave nothing on stderr."""
    assert cli("--only", "telemetry")[::2] == (0, "")


def test_a_wrong_name_is_refused_before_anything_is_sent(cli: Cli, server: ValkeyServer) -> None:
    """One line that names it and the nearest one, code 2, and no key."""
    code, lines, err = cli("--only", "flow_ad")

    assert (code, lines) == (2, [])
    assert err == "echomq-worker: scenario 'flow_ad': there is none of that name; did you mean flow_add?\n"
    assert server.admin.keys() == []


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An address where nobody answers ends with 3, no address with 2."""
    assert main(("conformance", "--url", "redis://127.0.0.1:1")) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert main(("conformance",)) == 2
    assert "ECHOMQ_URL is not set" in capsys.readouterr().err


def test_another_wire_version_is_refused(own_server: OwnServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A deployment of another version is refused with 4, and nothing is run."""
    server = own_server()
    server.admin.set("{emq}:version", "echomq:2.4.2")

    assert main(("conformance", "--url", server.url)) == 4
    assert "echomq:2.4.2" in capsys.readouterr().err
    assert server.admin.keys() == [b"{emq}:version"]
