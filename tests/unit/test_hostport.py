"""HOST:PORT: what is one, and what is not."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ConfigError
from echomq_worker.hostport import asked_at, parse_hostport, show_hostport
from echomq_worker.settings import load_settings


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9000", "127.0.0.1", 9000),
        (" localhost:0 ", "localhost", 0),
        ("[::]:65535", "::", 65_535),
        ("worker-1.jobs.svc:80", "worker-1.jobs.svc", 80),
    ],
)
def test_it_is_read_and_shown_again(text: str, host: str, port: int) -> None:
    """A name or an address, of IPv6 in brackets, and a port."""
    assert parse_hostport(text) == (host, port)
    assert show_hostport(host, port) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        *("", "9000", ":9000", "host", "host:", "host:x", "host:-1", "host:65536", "host:1_0", "::1:80", "[::1]"),
        *("[a]:1", "a b:1", "http://host:1", "user@host:1", "\u0665.1:1", "host:\u0665", "h" * 300 + ":1", "h\n:1"),
    ],
)
def test_what_is_none_is_refused_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the form that was expected; as a setting with its name."""
    with pytest.raises(ValueError, match="expected HOST:PORT, such as"):
        parse_hostport(text)
    if text:
        monkeypatch.setenv("ECHOMQ_HTTP", text)
        with pytest.raises(ConfigError, match=r"ECHOMQ_HTTP=.*: expected HOST:PORT") as raised:
            load_settings()
        assert "\n" not in str(raised.value)


def test_who_asks_names_an_address() -> None:
    """What listens everywhere is asked at this machine."""
    hosts = ("0.0.0.0", "::", "10.0.0.7")  # noqa: S104 - nothing is bound to it
    assert [asked_at(host) for host in hosts] == ["127.0.0.1", "::1", "10.0.0.7"]
