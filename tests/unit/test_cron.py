"""Cron: which run comes after a moment, by hand and as laws; both changes of summer time; what is no calendar."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.cron import Cron
from echomq_worker.errors import ConfigError, InvalidArgument

DAY_MS = 86_400_000
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def ms(text: str) -> int:
    """ISO 8601 with its offset to ms since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def runs(expression: str, zone: str, start: str, until: str) -> list[str]:
    """The runs after `start` up to `until`, as the clocks of the zone show them."""
    found, calendar = list[str](), Cron(expression, zone)
    at = calendar.after(ms(start))
    while at <= ms(until):
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).isoformat(timespec="minutes"))
        at = calendar.after(at)
    return found


# The hour from 2 to 3 is skipped on March 29; on October 25 it comes twice.
SPRING = ("2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00")
AUTUMN = ("2026-10-24T12:00+02:00", "2026-10-26T12:00+01:00")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0,30 2 * * *", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 3 * * *", ["2026-03-29T03:30+02:00", "2026-03-30T03:30+02:00"]),
    ],
)
def test_a_time_of_day_that_is_skipped_runs_right_behind_the_gap(expression: str, expected: list[str]) -> None:
    """Once, however many of its times fall into the hour; the day after as ever."""
    assert runs(expression, BERLIN, *SPRING) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("30 1-3 25 10 *", ["2026-10-25T01:30+02:00", "2026-10-25T02:30+02:00", "2026-10-25T03:30+01:00"]),
    ],
)
def test_a_time_of_day_that_comes_twice_runs_the_first_time(expression: str, expected: list[str]) -> None:
    """And not the second."""
    assert runs(expression, BERLIN, *AUTUMN) == expected


def test_whoever_registers_between_the_two_waits_for_the_next_day() -> None:
    """In the second hour of a name its times of day are over."""
    assert Cron("30 2 * * *", BERLIN).after(ms("2026-10-25T02:10+01:00")) == ms("2026-10-26T02:30+01:00")


@pytest.mark.parametrize("expression", ["*/30 * * * *", "15 * * * *", "0 */1 * * *"])
@pytest.mark.parametrize(("start", "hours"), [(SPRING[0], 47), (AUTUMN[0], 49)])
def test_a_star_goes_by_real_time(expression: str, start: str, hours: int) -> None:
    """Two days of 47 and of 49 hours: each hour of real time has its runs, however the clocks call it."""
    until = datetime.fromtimestamp(ms(start) / 1000 + hours * 3600, UTC).isoformat()
    found = [ms(text) for text in runs(expression, BERLIN, start, until)]

    step_ms = DAY_MS // 48 if expression.startswith("*/30") else DAY_MS // 24
    assert len(found) == hours * 3_600_000 // step_ms
    assert {later - sooner for sooner, later in pairwise(found)} == {step_ms}


expressions = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["*", "*/7", "0", "30", "5,50", "10-20/5", "59"]),
    st.sampled_from(["*", "*/5", "0", "2", "1-3", "23", "2,14"]),
    st.sampled_from(["*", "1", "15,L", "29", "31", "1-7"]),
    st.sampled_from(["*", "2", "3,10", "JAN-MAR"]),
    st.sampled_from(["*", "MON", "0,6", "5#3", "7"]),
)
zones = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kathmandu", "Africa/Casablanca"])
moments = st.integers(ms("1990-01-01T00:00Z"), ms("2036-01-01T00:00Z"))


@given(expressions, zones, moments, st.integers(0, 2 * DAY_MS))
def test_the_next_run_is_ahead_and_nobody_misses_it(expression: str, zone: str, now: int, wait: int) -> None:
    """Strictly later, on a whole second; whoever asks at any moment before it is told the same one, and whoever asks at
    the run itself a later one. So a Pump that is late, or asks twice, loses no run and makes none up.
    """
    calendar = Cron(expression, zone)
    try:
        run = calendar.after(now)
    except InvalidArgument as error:
        assert "Bad day" in str(error) or "never" in str(error)  # noqa: PT017 - a date that no month has
        return

    assert run > now
    assert run % 1000 == 0
    assert calendar.after(min(now + wait, run - 1)) == run
    assert calendar.after(run) > run


@given(st.integers(0, 23), st.integers(0, 59), zones, moments)
def test_a_time_of_day_runs_once_on_each_day(hour: int, minute: int, zone: str, now: int) -> None:
    """On every date of the zone exactly one run, on the days when the clocks are changed too."""
    calendar = Cron(f"{minute} {hour} * * *", zone)
    dates, at = [], now
    for _ in range(5):
        at = calendar.after(at)
        dates.append(datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).date())

    assert dates == [dates[0] + timedelta(days) for days in range(5)]


@pytest.mark.parametrize(
    ("expression", "zone", "said"),
    [
        ("0 3 * *", "UTC", "4 fields, expected 5"),
        ("0 0 3 * * *", "UTC", "6 fields, expected 5"),
        ("", "UTC", "0 fields"),
        ("0 25 * * *", "UTC", "Bad hour, expected such as"),
        ("0 0 31 2 *", "UTC", "Bad day-of-month"),
        ("0 0 30 2 *", "UTC", "Bad day-of-month"),
        ("0 0 * 2 MON#5", "UTC", None),
        ("@daily", "UTC", "1 fields"),
        ("0 3 * * *", "Europe/Nowhere", "tz 'Europe/Nowhere': no such time zone here"),
        ("0 3 * * *", "Europe", "no such time zone"),
        ("0 3 * * *", "../../etc/passwd", "no such time zone"),
        ("0 3 * * *", "a\0b", "no such time zone"),
        ("0 3 * * *", "", "no such time zone"),
        (7, "UTC", "cron of type int: expected a text"),
        ("0 3 * * *", None, "tz of type NoneType: expected a text"),
    ],
)
def test_what_is_no_calendar_is_said_in_one_line(expression: Any, zone: Any, said: str | None) -> None:
    """What it is, and what was expected; a date that comes once in years is one."""
    if said is None:
        assert Cron.of(expression, zone).after(0) > 0
        return
    with pytest.raises(InvalidArgument, match=r"^(cron|tz) ") as raised:
        Cron.of(expression, zone).after(0)

    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@given(st.text(alphabet="0123456789*/,-#LWMON \t²x", max_size=20), st.text(max_size=12))
def test_any_text_is_a_calendar_or_refused(expression: str, zone: str) -> None:
    """Nothing but InvalidArgument comes of it."""
    for one in (Cron.of(expression, "UTC"), Cron.of(f"0 0 {expression} * *", BERLIN), Cron.of("0 3 * * *", zone)):
        try:
            assert one.after(0) > 0
        except InvalidArgument:
            continue


@pytest.mark.parametrize("now", [10**15, ms("9999-12-31T23:00Z"), -(10**18)])
def test_a_moment_beyond_the_calendar_is_refused(now: int) -> None:
    """A host's clock that is far off is told so."""
    with pytest.raises(InvalidArgument, match="no run in reach of the calendar"):
        Cron("0 3 * * *", BERLIN).after(now)


def test_the_fields_are_one_blank_apart() -> None:
    """So that the same calendar is the same text."""
    assert Cron.of(" 0  3\t* * *\n", "UTC") == Cron("0 3 * * *")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """ConfigError, which is exit code 2: what to install."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'echomq-worker\[cron\]'"):
        Cron("0 3 * * *").after(0)
