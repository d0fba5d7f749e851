"""`repeat …`: registrations by a period and by a calendar, listed and cancelled."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import Cli, cli

__all__ = ["cli"]


def test_repeats_are_added_listed_and_cancelled(cli: Cli) -> None:
    """register, exists (with what differs), updated, list, cancel; cancelling what is not there is 1."""
    added = cli("repeat", "add", "reports", "daily", "86400000", '{"kind": "daily"}', "--first-in-ms", "60000")
    same = cli("repeat", "add", "reports", "daily", "86400000", '{"kind": "daily"}')
    other = cli("repeat", "add", "reports", "daily", "3600000", '{"kind": "daily"}')
    updated = cli("repeat", "add", "reports", "daily", "3600000", '{"kind": "daily"}', "--fixed-rate", "--update")
    _, listed, _ = cli("repeat", "list", "reports", "--json")
    _, as_text, _ = cli("repeat", "list", "reports")
    _, as_json, _ = cli("repeat", "add", "reports", "daily", "3600000", "x", "--json")
    cancelled = cli("repeat", "cancel", "reports", "daily")
    again = cli("repeat", "cancel", "reports", "daily")

    assert (added, same) == ((0, "registered\n", ""), (0, "exists\n", ""))
    assert other[:2] == (0, "exists\n")
    assert "another every_ms" in other[2]
    assert updated[:2] == (0, "updated\n")
    record = json.loads(listed)
    assert (record["name"], record["every_ms"], record["fixed_rate"]) == ("daily", 3_600_000, True)
    assert record["template"] == '{"kind": "daily"}'
    assert "fixed" in as_text
    assert json.loads(as_json) == {"name": "daily", "outcome": "exists", "difference": ["template", "fixed_rate"]}
    assert (cancelled[:2], again[0]) == ((0, "cancelled\n"), 1)


def test_repeats_by_a_calendar_are_added_and_listed(cli: Cli) -> None:
    """With their expression, zone and next run; the zone is UTC unless given."""
    line = ("repeat", "cron", "reports", "nightly", "0 3 * * *", '{"kind": "nightly"}')
    added = cli(*line, "--tz", "Europe/Berlin")
    other = cli(*line)
    updated = cli(*line, "--update")
    _, listed, _ = cli("repeat", "list", "reports", "--json")
    _, as_text, _ = cli("repeat", "list", "reports")

    assert (added, updated[:2]) == ((0, "registered\n", ""), (0, "updated\n"))
    assert "exists with another tz: left as it is, --update replaces it" in other[2]
    record = json.loads(listed)
    assert (record["every_ms"], record["cron"], record["tz"]) == (None, "0 3 * * *", "UTC")
    assert record["next_at_ms"] % 86_400_000 == 3 * 3_600_000
    assert as_text.splitlines()[1].split() == ["nightly", "-", "0", "3", "*", "*", "*", "UTC", as_text.split()[-1]]
    assert as_text.split()[-1].endswith("T03:00:00.000+00:00")


@pytest.mark.parametrize("every", ["0", "-5", "often"])
def test_a_wrong_period_is_refused(cli: Cli, every: str) -> None:
    """A period is an integer of at least 1 ms."""
    code, _, err = cli("repeat", "add", "reports", "daily", "x", "--first-in-ms", "1", "--", every)

    assert code == 2
    assert err.count("\n") == 1
