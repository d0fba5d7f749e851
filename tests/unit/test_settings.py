"""Settings: one reader of the environment, one line for everything that is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from echomq_worker.errors import ConfigError
from echomq_worker.settings import Settings, effective, expected, load_settings, unknown_variables, variable

DOCS = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

DEFAULTS = {
    "url": None,
    "wire_version": "echomq:3.0.0",
    "wire": "4",
    "concurrency": 10,
    "prefetch": 0,
    "lease_ms": 30_000,
    "beat_ms": 1_000,
    "tick_ms": 1_000,
    "pump": True,
    "events": True,
    "promote_batch": 100,
    "max_attempts": 3,
    "retry_delay_ms": 1_000,
    "max_crashes": 5,
    "stalled": None,
    "dead_max_age_ms": None,
    "dead_max_count": None,
    "blocked_ms": 1_000,
    "grace_ms": 25_000,
    "connect_timeout_ms": 5_000,
    "command_timeout_ms": 5_000,
    "pool_size": 4,
    "http": None,
    "node_id": None,
    "web_token": None,
    "web_user": None,
    "log_format": "auto",
    "log_level": "info",
}


def test_defaults_are_those_of_the_protocol() -> None:
    """Without any variable every setting has the documented default, and there is no URL: never a silent localhost."""
    assert effective(load_settings()) == DEFAULTS


def test_a_flag_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag over environment over default; None is a flag that was not given."""
    monkeypatch.setenv("ECHOMQ_CONCURRENCY", "7")
    monkeypatch.setenv("ECHOMQ_BEAT_MS", "200")

    settings = load_settings({"concurrency": 9, "beat_ms": None})

    assert (settings.concurrency, settings.beat_ms, settings.tick_ms) == (9, 200, 1_000)


def test_nothing_is_read_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is read when the settings are made, and not again."""
    made = load_settings()
    monkeypatch.setenv("ECHOMQ_BEAT_MS", "77")

    assert made.beat_ms == 1_000
    assert load_settings().beat_ms == 77


def test_settings_are_frozen() -> None:
    """Nobody changes a setting under a running worker."""
    with pytest.raises(ValueError, match="frozen"):
        load_settings().beat_ms = 5  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ECHOMQ_BEAT_MS", "abc", "ECHOMQ_BEAT_MS='abc': expected an integer from 1 to 86400000 (milliseconds)"),
        ("ECHOMQ_BEAT_MS", "1s", "ECHOMQ_BEAT_MS='1s': expected an integer from 1 to 86400000 (milliseconds)"),
        ("ECHOMQ_GRACE_MS", "-1", "ECHOMQ_GRACE_MS='-1': expected an integer from 0 to 86400000 (milliseconds)"),
        ("ECHOMQ_MAX_CRASHES", "2", "ECHOMQ_MAX_CRASHES='2': expected an integer from 3 to 1000"),
        ("ECHOMQ_NODE_ID", "1024", "ECHOMQ_NODE_ID='1024': expected an integer from 0 to 1023"),
        ("ECHOMQ_PUMP", "maybe", "ECHOMQ_PUMP='maybe': expected true or false"),
        ("ECHOMQ_LOG_LEVEL", "loud", "ECHOMQ_LOG_LEVEL='loud': expected one of debug, info, warning, error"),
        ("ECHOMQ_WIRE_VERSION", "v" * 65, "expected a text of 1 to 64 characters"),
        ("ECHOMQ_LEASE_MS", "1999", "ECHOMQ_LEASE_MS=1999: expected at least two beats (2 x 1000 ms, ECHOMQ_BEAT_MS)"),
    ],
)
def test_a_bad_value_is_one_line_with_name_value_and_expectation(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """A bad variable is a ConfigError: its name, its value, what was expected, on one line.

    Report 93 (celery/celery#10388).
    """
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError) as caught:
        load_settings()

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_bad_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has two mistakes in the environment hears of both."""
    monkeypatch.setenv("ECHOMQ_BEAT_MS", "x")
    monkeypatch.setenv("ECHOMQ_POOL_SIZE", "0")

    with pytest.raises(ConfigError, match=r"ECHOMQ_BEAT_MS='x'.*; ECHOMQ_POOL_SIZE='0'"):
        load_settings()


def test_a_bad_flag_is_told_with_the_variable_that_it_stands_for() -> None:
    """A value that does not come from the environment is named by its setting."""
    with pytest.raises(ConfigError, match=r"concurrency \(ECHOMQ_CONCURRENCY\)=0: expected an integer from 1 to 10000"):
        load_settings({"concurrency": 0})


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    """A misspelt keyword is no silent default."""
    with pytest.raises(ConfigError, match="beats_ms: no such setting, did you mean beat_ms"):
        load_settings({"beats_ms": 5})


@given(st.text(min_size=1, max_size=300))
def test_no_value_makes_more_than_one_line(value: str) -> None:
    """Whatever a value holds, the error is one line of bounded length."""
    with pytest.raises(ConfigError) as caught:
        load_settings({"log_format": value + "!"})

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_url_is_no_url(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """An empty variable counts as unset, and the error names it."""
    monkeypatch.setenv("ECHOMQ_URL", value)

    with pytest.raises(ConfigError, match="ECHOMQ_URL is not set: expected redis://"):
        load_settings().require_url()


def test_the_url_is_never_shown_with_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is in the URL that is used, and in nothing that is printed."""
    monkeypatch.setenv("ECHOMQ_URL", "redis://worker:s3cret@db:6379/0")

    settings = load_settings()

    assert settings.require_url() == "redis://worker:s3cret@db:6379/0"
    assert effective(settings)["url"] == "redis://worker:***@db:6379/0"
    assert "s3cret" not in repr(settings)


def test_a_bad_url_setting_is_told_without_its_value() -> None:
    """A secret is not quoted, not even a wrong one."""
    with pytest.raises(ConfigError) as caught:
        load_settings({"url": 12345})

    assert "ECHOMQ_URL" in str(caught.value)
    assert "12345" not in str(caught.value)


def test_settings_can_be_made_in_code() -> None:
    """A program that embeds a worker gives a URL as text or as a secret."""
    assert Settings(url=SecretStr("redis://h"), beat_ms=100).require_url() == "redis://h"


def test_unknown_variables_are_named_with_the_nearest() -> None:
    """Every ECHOMQ_* that is no setting is warned about; others are none of our business.

    Report 92 (python-arq/arq#305).
    """
    names = ["ECHOMQ_BEATMS", "PATH", "ECHOMQ_URL", "ECHOMQ_QQQQ", "ECHOMQ_BAD\n"]

    assert unknown_variables(names) == [
        "ECHOMQ_BAD\\n is not a setting: it is ignored",
        "ECHOMQ_BEATMS is not a setting: did you mean ECHOMQ_BEAT_MS?",
        "ECHOMQ_QQQQ is not a setting: it is ignored",
    ]


def test_unknown_variables_are_looked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names the environment's are looked at."""
    monkeypatch.setenv("ECHOMQ_LEASEMS", "1")

    assert unknown_variables() == ["ECHOMQ_LEASEMS is not a setting: did you mean ECHOMQ_LEASE_MS?"]


def _docs_rows() -> list[list[str]]:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `ECHOMQ_")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_docs_table_is_the_settings() -> None:
    """docs/settings.md has every setting in order with its variable, default, bounds and meaning, and no other.

    Report 115 (tobymao/saq#302).
    """
    rows = _docs_rows()

    assert [row[0].split("<br>")[:2] for row in rows] == [
        [f"`{variable(name)}`", f"`{name}`"] for name in Settings.model_fields
    ]
    for row, (name, field) in zip(rows, Settings.model_fields.items(), strict=True):
        assert row[3] == ("unset" if field.default is None else f"`{str(field.default).lower()}`"), name
        assert row[1] == field.description, name
        # The words of an error say the same numbers.
        assert set(re.findall(r"\d+", row[5])) <= set(re.findall(r"\d+", expected(name, field))), name
