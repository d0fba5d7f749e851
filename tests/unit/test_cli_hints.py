"""What a command line adds to an error: what to do next."""

from __future__ import annotations

import pytest

from echomq_worker import cli
from echomq_worker.errors import AuthenticationFailed, EchoMQError, FenceRefused, ServerError, Unreachable


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Unreachable("h:1: refused"), "is a server running there?"),
        (Unreachable("h:1: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "ssl_ca_certs=FILE"),
        (AuthenticationFailed("h:1: WRONGPASS"), "the URL has user and password"),
        (ServerError("NOPERM User x has no permissions to run the 'smembers' command"), "echomq-worker acl prints"),
        (ServerError("WRONGTYPE Operation against a key"), None),
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
