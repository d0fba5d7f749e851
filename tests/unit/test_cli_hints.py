"""Errors of the command line name the next step, and what they name exists.

Source: issue "Made for the people who run it" (In the terminal).
"""

from __future__ import annotations

import re

import pytest

from echomq_worker import cli
from echomq_worker.cli.hints import _KINDS, _TEXTS, next_step, with_next_step
from echomq_worker.errors import (
    AuthenticationFailed,
    CommandTimeout,
    ConfigError,
    EchoMQError,
    FenceRefused,
    Locked,
    ServerError,
    Unavailable,
    Unreachable,
)
from echomq_worker.script import scripts
from tests.support.cli_reference import commands, parameters


def test_every_refusal_that_has_a_hint_is_a_scripts() -> None:
    """A text that a script no longer says would hint at nothing."""
    said = "".join(script.source for script in scripts().values())

    assert [text for text, _ in _TEXTS if text.startswith("EMQ") and f"'{text}'" not in said] == []


def test_what_a_hint_names_exists() -> None:
    """Commands by their words, options of some command."""
    hints = " ".join(hint for _, hint in (*_TEXTS, *_KINDS))
    options = {option for command in commands().values() for one in parameters(command) for option in one.opts}

    named = re.findall(r"\b(?:job|dead|flow|queue|lane) [a-z]+\b", hints)
    verbs = [words for words in named if words.split()[1] in {"show", "cancel", "trim", "audit", "requeue", "list"}]
    assert len(verbs) >= 5
    assert [words for words in verbs if words not in commands()] == []
    assert [flag for flag in re.findall(r"--[a-z-]+", hints) if flag not in options] == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Locked("EMQLOCK job is locked"), "job cancel"),
        (ServerError("NOPERM User x has no permissions to run the 'del' command"), "echomq-worker acl"),
        (Unavailable("READONLY You can't write against a read only replica."), "primary"),
        (CommandTimeout("no reply within 5000 ms"), "ECHOMQ_COMMAND_TIMEOUT_MS"),
        (Unreachable("redis://localhost:6379/0: Connection refused"), "ECHOMQ_URL"),
    ],
)
def test_the_text_comes_before_the_kind(error: ServerError, said: str) -> None:
    """In brackets behind what went wrong."""
    assert re.fullmatch(rf" \(.*{re.escape(said)}.*\)", next_step(error))


def test_an_error_that_says_it_has_none() -> None:
    """What was expected stands in the error itself."""
    assert next_step(ConfigError("ECHOMQ_URL is not set: expected redis://host:6379/0")) == ""
    assert with_next_step("EMQKIND job id must be JOB-namespaced") == "EMQKIND job id must be JOB-namespaced"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Unreachable("h:1: refused"), "is a server running there?"),
        (Unreachable("h:1: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "ssl_ca_certs=FILE"),
        (AuthenticationFailed("h:1: WRONGPASS"), "the URL has user and password"),
        (ServerError("NOPERM User x has no permissions to run the 'smembers' command"), "echomq-worker acl prints"),
        (ServerError("WRONGTYPE Operation against a key"), "queue audit"),
        (ServerError("ERR unknown command"), None),
        (FenceRefused("echomq:3.0.0", "other"), "ECHOMQ_WIRE_VERSION"),
    ],
)
def test_the_hint_is_about_this_error(
    error: EchoMQError, hint: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line: the error, and one hint at most, in brackets behind it."""

    def fail(_: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    cli.main(["queue", "list"])
    line = capsys.readouterr().err
    assert line.startswith(f"echomq-worker: {error}")
    assert line.count("\n") == 1
    assert line.removeprefix(f"echomq-worker: {error}").count("(") == (hint is not None)
    assert hint is None or hint in line
