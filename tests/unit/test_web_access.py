"""The doors of the dashboard: tokens, sessions, host names, origins."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from echomq_worker.errors import ConfigError
from echomq_worker.web.access import LOCAL_HOSTS, SESSION_MS, Access, Doorman, same_origin
from echomq_worker.web.serve import Bind, access_for, hosts_for

TOKEN = "0123456789abcdef"


def basic(text: str) -> str:
    """A header as a browser sends it."""
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_a_token_is_let_in_and_nothing_else() -> None:
    """As a bearer or on the login page; not a part of it, not another case, not another scheme."""
    access = Access.by_token(TOKEN)

    assert access.admits(f"Bearer {TOKEN}")
    assert access.admits(f"bearer {TOKEN} ")
    for wrong in (None, "", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", basic(f"a:{TOKEN}"), "Bearer é"):
        assert not access.admits(wrong), wrong
    assert access.is_token(TOKEN)
    assert not access.is_token("")


def test_a_login_is_let_in_and_nothing_else() -> None:
    """The name and the password of HTTP basic; what cannot be read is no login."""
    access = Access.by_password("ada", "lovelace!")

    assert access.admits(basic("ada:lovelace!"))
    for wrong in (
        None,
        "Basic",
        "Basic ???",
        basic("ada"),
        basic("ada:lovelace"),
        basic("eva:lovelace!"),
        f"Bearer {TOKEN}",
    ):
        assert not access.admits(wrong), wrong


@pytest.mark.parametrize("token", ["", "short", " " * 40, "line\nbreaks are none of it"])
def test_a_weak_token_is_refused_and_not_shown(token: str) -> None:
    """Below 16 characters, or with what cannot be typed: one line that does not repeat it."""
    with pytest.raises(ConfigError) as caught:
        Access.by_token(token)
    assert not token.strip() or token not in str(caught.value)


@pytest.mark.parametrize(("name", "password"), [("", "long enough"), ("a:b", "long enough"), ("ada", "short")])
def test_a_weak_login_is_refused(name: str, password: str) -> None:
    """No name, a colon in it, a password below 8 characters."""
    with pytest.raises(ConfigError, match="name:password"):
        Access.by_password(name, password)


def test_secrets_are_in_no_representation() -> None:
    """Who logs an Access logs no secret."""
    assert TOKEN not in repr(Access.by_token(TOKEN))
    assert "lovelace" not in repr(Access.by_password("ada", "lovelace!"))


def test_a_session_is_read_as_it_was_written_until_it_is_over() -> None:
    """Name, level and end come back; a day later nobody is in."""
    doorman = Doorman(Access.by_token(TOKEN))
    session = doorman.new("in", 1_000)
    cookie = doorman.written(session)

    assert doorman.read(cookie, 2_000) == session
    assert doorman.read(cookie, 1_000 + SESSION_MS) is None


def test_a_session_that_was_changed_is_none() -> None:
    """Nobody makes a visitor's session one that is in, or longer, or another's."""
    doorman = Doorman(Access.by_token(TOKEN))
    visitor = doorman.new("visitor", 0)
    cookie = doorman.written(visitor)

    forged = [cookie.replace(".visitor.", ".in."), cookie.replace(str(visitor.until_ms), "9" * 15), "x" + cookie]
    forged += [cookie[:-1], "", "a.b", "a.in.1.sig", "." * 3]
    assert [one for one in forged if doorman.read(one, 1) is not None] == []
    assert doorman.read(None, 1) is None


def test_a_form_token_belongs_to_one_session() -> None:
    """That of another session, or none, is no token."""
    doorman = Doorman(Access.anybody())
    mine, yours = doorman.new("visitor", 0), doorman.new("visitor", 0)

    assert doorman.is_form_token(mine, doorman.form_token(mine))
    assert not doorman.is_form_token(mine, doorman.form_token(yours))
    assert not doorman.is_form_token(mine, "")


def test_processes_with_one_secret_know_each_others_sessions() -> None:
    """With an access of its own, or a secret that is given; without both each process is its own."""
    first, second = Doorman(Access.by_token(TOKEN)), Doorman(Access.by_token(TOKEN))
    assert second.read(first.written(first.new("in", 0)), 1) is not None
    assert first.cookie == second.cookie

    given = [Doorman(Access.anybody(), secret=b"x" * 16) for _ in range(2)]
    session = given[0].new("visitor", 0)
    assert given[1].is_form_token(session, given[0].form_token(session))

    alone, other = Doorman(Access.anybody()), Doorman(Access.anybody())
    assert other.read(alone.written(alone.new("in", 0)), 1) is None
    assert alone.cookie != other.cookie
    with pytest.raises(ConfigError, match="16 bytes"):
        Doorman(Access.anybody(), secret=b"short")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:1", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("evil.example", False),
        ("localhost.evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_only_the_names_of_this_machine_are_known(host: str | None, known: bool) -> None:
    """A name that somebody has pointed at this machine is not one of its own (DNS rebinding)."""
    assert Doorman(Access.anybody(), hosts=LOCAL_HOSTS).knows_host(host) is known
    assert Doorman(Access.anybody()).knows_host(host)


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"host": "a:80"}, True),
        ({"host": "a:80", "origin": "http://a:80"}, True),
        ({"host": "a", "origin": "https://A", "sec-fetch-site": "same-origin"}, True),
        ({"host": "a", "origin": "http://b"}, False),
        ({"host": "a:80", "origin": "http://a:81"}, False),
        ({"host": "a", "origin": "null"}, False),
        ({"host": "a", "origin": "http://[oops"}, False),
        ({"origin": "null", "host": ""}, False),
        ({"host": "a", "sec-fetch-site": "cross-site"}, False),
        ({"host": "a", "sec-fetch-site": "same-site"}, False),
        ({"host": "a", "sec-fetch-site": "none"}, False),
    ],
)
def test_only_our_own_pages_may_change_something(headers: dict[str, str], same: bool) -> None:
    """As far as a browser says where a form comes from."""
    assert same_origin(headers) is same


@pytest.mark.parametrize(
    ("text", "host", "port", "local"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("[::1]:80", "::1", 80, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),  # noqa: S104 - the address that must not be open
        ("[::]:80", "::", 80, False),
        ("jobs.example.com:80", "jobs.example.com", 80, False),
        ("localhost.example.com:80", "localhost.example.com", 80, False),
    ],
)
def test_where_to_listen_says_who_can_reach_it(text: str, host: str, port: int, local: bool) -> None:
    """Loopback is this machine alone; without a secret any other address is refused."""
    bind = Bind.parse(text)

    assert dataclasses.astuple(bind) == (host, port)
    assert bind.local is local
    if local:
        assert access_for(bind, None, None).kind == "anybody"
        assert set(hosts_for(bind, ["jobs"]) or ()) >= {*LOCAL_HOSTS, "jobs"}
    else:
        with pytest.raises(ConfigError, match="ECHOMQ_WEB_TOKEN"):
            access_for(bind, None, None)
        assert hosts_for(bind, []) is None
    assert access_for(bind, TOKEN, None).kind == "token"
    assert access_for(bind, None, "ada:lovelace!").kind == "password"
    with pytest.raises(ConfigError, match="not both"):
        access_for(bind, TOKEN, "ada:lovelace!")
