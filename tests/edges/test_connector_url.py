"""URLs: what is accepted, what is refused in one line, and that no password is ever shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.address import Address, Kind, mask
from echomq_worker.connector import Connector
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import ConfigError

SECRET = "s3cr3t"
SCHEMES = ["redis", "rediss", "unix", "http", "redis+sentinel", "rediss+sentinel", "redis+cluster"]


@pytest.mark.parametrize(
    ("url", "peer", "db", "username", "password"),
    [
        ("redis://host", "host:6379", 0, "", ""),
        ("redis://host:7000/3", "host:7000", 3, "", ""),
        ("redis://host:7000/?db=4", "host:7000", 4, "", ""),
        ("redis://:p@host/", "host:6379", 0, "", "p"),
        ("redis://user:p%40s%3As%2F%23%25@host:1/0", "host:1", 0, "user", "p@s:s/#%"),
        ("redis://us%40er@host", "host:6379", 0, "us@er", ""),
        ("redis://u:p@[::1]:6380/2", "[::1]:6380", 2, "u", "p"),
        ("unix:///run/val%20key.sock?db=2&password=p", "/run/val key.sock", 2, "", "p"),
        ("unix://user:p@/run/v.sock", "/run/v.sock", 0, "user", "p"),
        ("rediss://host:6380?ssl_cert_reqs=none", "host:6380", 0, "", ""),
        ("REDIS://Host", "host:6379", 0, "", ""),
    ],
)
def test_what_a_url_says(url: str, peer: str, db: int, username: str, password: str) -> None:
    """Host, port, socket path, database and percent-escaped credentials are read from the URL."""
    endpoint = Endpoint.parse(url)
    assert (endpoint.peer, endpoint.db, endpoint.username, endpoint.password) == (peer, db, username, password)


def test_what_a_url_of_several_hosts_says() -> None:
    """Hosts in their order with the ports of their kind, names and IPv6; service and database; two logins apart."""
    url = "rediss+sentinel://us%40er:p%2Fw@A,[::1],c:7/my-main.1/4?sentinel_username=w%40&sentinel_password=x%2Fy"
    address = Address.parse(url)
    assert (address.kind, address.hosts) == (Kind.SENTINEL, (("a", 26379), ("::1", 26379), ("c", 7)))
    assert (address.service, address.db, address.tls) == ("my-main.1", 4, {})
    assert (address.username, address.password) == ("us@er", "p/w")
    assert (address.sentinel_username, address.sentinel_password) == ("w@", "x/y")
    assert "p/w" not in repr(address)
    assert "x/y" not in repr(address)
    cluster = Address.parse("redis+cluster://a,b:1/0")
    assert (cluster.kind, cluster.hosts, cluster.tls) == (Kind.CLUSTER, (("a", 6379), ("b", 1)), None)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "expected a text such as redis://host:6379/0"),
        ("host:6379", "expected a scheme of redis://, rediss:// or unix://"),
        (f"http://u:{SECRET}@host", "expected a scheme of redis://, rediss:// or unix://"),
        (f"redis:u:{SECRET}@host", "expected a scheme of"),
        ("redis://", "no host"),
        ("redis:///0", "no host"),
        (f"redis://u:{SECRET}@:6379", "no host"),
        ("redis://host:0", "port 0, expected 1 to 65535"),
        (f"redis://u:{SECRET}@host:65536", "the host or port cannot be read"),
        (f"redis://u:{SECRET}@host:http", "the host or port cannot be read"),
        (f"redis://u:{SECRET}#x@host", "the host or port cannot be read"),
        (f"redis://u:{SECRET}/x@host", "the host or port cannot be read"),
        (f"redis://u:1/{SECRET}@host", "must be written as %2F %3F %23 or %40"),
        (f"redis://u:1#{SECRET}@host", "must be written as %2F %3F %23 or %40"),
        (f"redis://u:1?{SECRET}@host", "must be written as %2F %3F %23 or %40"),
        (f"redis://u:{SECRET}@host#", "must be written as %2F %3F %23 or %40"),
        (f"redis://u:{SECRET}@[::1", "the host or port cannot be read"),
        (f"redis://u:{SECRET} @host", "a space or a control character"),
        (f"redis://u:{SECRET}@host/0\n", "a space or a control character"),
        (f"redis://u:{SECRET}@host/jobs", "database 'jobs', expected a number of 0 or more"),
        (f"redis://u:{SECRET}@host/-1", "database '-1', expected a number of 0 or more"),
        (f"redis://u:{SECRET}@host/1/2", "database '1/2', expected a number of 0 or more"),
        (f"redis://u:{SECRET}@host?db=x", "database 'x', expected a number of 0 or more"),
        (f"redis://u:{SECRET}@host?db=-3", "database '-3', expected a number of 0 or more"),
        (f"redis://u:{SECRET}@host?retry_on_timeout=1", "unknown option 'retry_on_timeout', expected one of db,"),
        (f"redis://u:{SECRET}@host?ssl_ca_certs=x", "unknown option 'ssl_ca_certs'"),
        ("unix://", "no socket path"),
        ("unix://run/valkey.sock", "expected a path behind a third slash"),
        (f"redis://u:{SECRET}@a,b", "several hosts, expected one, or a scheme of redis+sentinel://"),
        (f"redis+sentinel://u:{SECRET}@a:1,b:x/main", "the host or port cannot be read"),
        (f"redis+sentinel://u:{SECRET}@a:1,,b:2/main", "no host, expected such as redis+sentinel://host1:26379,"),
        (f"redis+sentinel://u:{SECRET}@a:1,a:1/main", "a host stands there twice"),
        (f"redis+sentinel://u:{SECRET}@a,b", "no service, expected the name that sentinels give the primary"),
        (f"redis+sentinel://u:{SECRET}@a,b/ma%20in", "service 'ma in', expected the name"),
        (f"redis+sentinel://u:{SECRET}@a,b/main/x", "database 'x', expected a number of 0 or more"),
        (f"redis+sentinel://u:{SECRET}@a,b/main?sentinel_pass={SECRET}", "unknown option 'sentinel_pass'"),
        (f"redis+sentinel://u:{SECRET}@a,b/main?ssl_ca_certs=x", "and the scheme rediss for TLS"),
        (f"redis://u:{SECRET}@a?sentinel_password={SECRET}", "unknown option 'sentinel_password'"),
        (f"redis+cluster://u:{SECRET}@a,b/1", "database 1, a cluster has database 0 only"),
        (f"redis://u:{SECRET}@host?db=1&db=2", "option db stands there twice, expected once"),
        (f"rediss://u:{SECRET}@host?ssl_cert_reqs=maybe", "TLS options cannot be used"),
        (f"rediss://u:{SECRET}@host?ssl_ca_certs=/no/such/file", "ssl_ca_certs: it is not there"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line(url: str, complaint: str) -> None:
    """ConfigError says what is wrong and what was expected, on one line, without the password."""
    with pytest.raises(ConfigError) as caught:
        Connector(url)
    text = str(caught.value)
    assert text.startswith("url")
    assert complaint in text
    assert "\n" not in text
    assert SECRET not in text
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_no_text_at_all_is_refused() -> None:
    """A setting that was never set is not a silent localhost."""
    nothing: str = None  # type: ignore[assignment]  # what an untyped caller may pass
    with pytest.raises(ConfigError, match="got none"):
        Connector(nothing)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://u:{SECRET}@host:1/2", "redis://u:***@host:1/2"),
        (f"redis://:{SECRET}@host", "redis://:***@host"),
        (f"redis://u:a@{SECRET}@host", "redis://u:***@host"),
        (f"unix:///run/v.sock?db=1&password={SECRET}", "unix:///run/v.sock?db=1&password=***"),
        (f"redis://host?pasword={SECRET}&db=1", "redis://host?pasword=***&db=1"),
        (f"rediss://host?ssl_password={SECRET}&ssl_ca_certs=/etc/ca.pem", None),
        (
            f"redis+sentinel://u:{SECRET}@a:1,b:2/main/3?sentinel_username=s&sentinel_password={SECRET}",
            "redis+sentinel://u:***@a:1,b:2/main/3?sentinel_username=s&sentinel_password=***",
        ),
        (f"rediss+cluster://:{SECRET}@a,[::1]:2", "rediss+cluster://:***@a,[::1]:2"),
        (f"redis+sentinel://u:1/{SECRET}@a,b/main", "***"),
        (f"redis://u:1/{SECRET}@host", "***"),
        (f"redis://u:1#{SECRET}@host", "***"),
        (f"redis://u:1@x#{SECRET}@host", "***"),
        (f"redis://u:1?{SECRET}@host", "***"),
        (f"u:{SECRET}@host", "***"),
        (f"redis://u:{SECRET}@[::1", "***"),
        ("redis://host:6379", "redis://host:6379"),
    ],
)
def test_a_masked_url_shows_no_secret(url: str, shown: str | None) -> None:
    """Passwords in the login and in the options are replaced; a URL whose parts cannot be told apart is not shown."""
    assert SECRET not in mask(url)
    if shown is not None:
        assert mask(url) == shown


@given(password=st.text(min_size=1, max_size=20), scheme=st.sampled_from(SCHEMES))
def test_no_password_gets_into_any_text(password: str, scheme: str) -> None:
    """Whatever unescaped text stands in a URL's password, neither mask nor a refusal repeats it.

    Report 91 (celery/celery#2143).
    """
    marked = f"QQ{password}QQ"
    url = f"{scheme}://user:{marked}@host:6379/{'main/' if 'sentinel' in scheme else ''}0"
    pieces = [piece for piece in (marked, *marked.replace("?", "/").replace("#", "/").split("/")) if "QQ" in piece]
    texts = [mask(url)]
    try:
        texts.append(repr(Endpoint.parse(url)))
    except ConfigError as error:
        texts.append(str(error))
    assert not [text for text in texts if any(piece in text for piece in pieces)]


def test_the_object_shows_no_password() -> None:
    """The repr of the connector's parts, as a debugger or a crash report prints them, holds no password."""
    connector = Connector(f"redis://user:{SECRET}@host:6379/0")
    assert connector.url_safe == "redis://user:***@host:6379/0"
    assert SECRET not in repr(connector)
    assert SECRET not in repr(connector._endpoint)
    assert SECRET not in repr(connector._endpoint.dialer)


@pytest.mark.parametrize("setting", ["connect_timeout_ms", "command_timeout_ms"])
def test_a_timeout_of_nothing_is_refused(setting: str) -> None:
    """A timeout of 0 would fail every call: it is refused when the connector is made."""
    settings: dict[str, Any] = {setting: 0}
    with pytest.raises(ConfigError, match=f"{setting}: 0, expected an integer from 1 to 86400000"):
        Connector("redis://host", **settings)


def test_the_dialer_never_retries() -> None:
    """redis-py would send a timed-out command again, up to ten times: on what we make, retries are 0."""
    for url in ("redis://host", "rediss://host", "unix:///run/v.sock"):
        assert Endpoint.parse(url).dialer.retry.get_retries() == 0
