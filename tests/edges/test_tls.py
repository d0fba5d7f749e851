"""TLS with real servers that have it: what connects, and one clear line for each way in which it does not.

Source: issue "The five promises", Topologies. user-needs 103.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from echomq_worker.cli import main
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConfigError, Unreachable
from tests.edges.test_cli_ping import heavy_imports
from tests.support.sentinel import Sentinel
from tests.support.tls import MISSING, Authority, Pair, as_arguments, as_lines, redis_server, server_tls
from tests.support.valkey import OwnServer, ValkeyServer, free_port

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)} here")


@dataclass(frozen=True, slots=True)
class Papers:
    """An authority and another one; what the first has signed, and a client's certificate of each."""

    authority: Authority
    other: Authority
    server: Pair
    expired: Pair
    elsewhere: Pair
    client: Pair
    stranger: Pair

    @property
    def trust(self) -> str:
        """The option that trusts the authority."""
        return f"ssl_ca_certs={self.authority.certificate}"

    @staticmethod
    def shows(pair: Pair) -> str:
        """The options that show a client's certificate."""
        return f"ssl_certfile={pair.certificate}&ssl_keyfile={pair.key}"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Made once: they are files that nobody changes."""
    folder = tmp_path_factory.mktemp("tls")
    authority, other = Authority(folder), Authority(folder, "other")
    return Papers(
        authority,
        other,
        server=authority.sign("server"),
        expired=authority.sign("expired", days=-1),
        elsewhere=authority.sign("elsewhere", names="DNS:elsewhere"),
        client=authority.sign("client"),
        stranger=other.sign("stranger"),
    )


class Servers:
    """A server with TLS for each certificate and demand, started when it is first asked for."""

    def __init__(self, papers: Papers, stack: ExitStack) -> None:
        self._papers = papers
        self._stack = stack
        self._started: dict[tuple[Path, str], tuple[ValkeyServer, int]] = {}

    def port(self, pair: Pair, *, clients: str = "no") -> int:
        """The port on which it speaks TLS."""
        return self.start(pair, clients)[1]

    def start(self, pair: Pair, clients: str) -> tuple[ValkeyServer, int]:
        """The server, which has a port without TLS for the tests too, and the port with it."""
        key = (pair.certificate, clients)
        if key not in self._started:
            port = free_port()
            tls = as_arguments(server_tls(self._papers.authority, pair, clients=clients))
            server = ValkeyServer(binary=redis_server(), args=("--tls-port", str(port), *tls))
            self._stack.callback(server.close)
            self._started[key] = (server.start(), port)
        return self._started[key]


@pytest.fixture(scope="module")
def servers(papers: Papers) -> Iterator[Servers]:
    """Ended when the module is."""
    with ExitStack() as stack:
        yield Servers(papers, stack)


async def test_own_authority_client_certificate_and_login(servers: Servers, papers: Papers) -> None:
    """A server that demands a client's certificate, and a user whose password has every character that a URL escapes:
    commands, a wait and a subscription work over TLS.
    """
    server, port = servers.start(papers.server, "yes")
    password = "".join(map(chr, range(33, 127)))
    server.admin.acl_setuser(
        "us@er", enabled=True, passwords=f"+{password}", keys=["*"], channels=["*"], categories=["+@all"]
    )
    escaped = "".join(f"%{ord(character):02X}" for character in password)
    url = f"rediss://us%40er:{escaped}@localhost:{port}/1?{papers.trust}&{papers.shows(papers.client)}"
    async with connect(url + "&ssl_min_version=TLSv1.3") as connector:
        assert await connector.call("ACL", "WHOAMI") == b"us@er"
        assert await connector.call("LPUSH", "emq:{q}:wake", "1") == 1
        assert await connector.parking().blpop(["emq:{q}:wake"], 20_000) == b"emq:{q}:wake"
        heard = connector.subscription("cancel")
        await heard.open(["emq:{q}:cancel"])
        await connector.call("PUBLISH", "emq:{q}:cancel", "x")
        assert (await heard.get()).data == b"x"
    assert password not in connector.url_safe


async def test_what_cannot_connect_is_one_line_each(servers: Servers, papers: Papers) -> None:
    """A client without a certificate or with a stranger's, an authority that is not the server's, an expired
    certificate, one of another host, TLS on one side only: Unreachable, one line that says which.
    """
    plain, tls = servers.start(papers.server, "no")
    demanding = servers.port(papers.server, clients="yes")
    for url, words in (
        # A reset may overtake the server's word: then that is the line.
        (f"rediss://localhost:{demanding}?{papers.trust}", "certificate required|ConnectionResetError"),
        (
            f"rediss://localhost:{demanding}?{papers.trust}&{papers.shows(papers.stranger)}",
            "unknown ca|ConnectionResetError",
        ),
        (f"rediss://localhost:{tls}?ssl_ca_certs={papers.other.certificate}", "self-signed certificate in"),
        (f"rediss://localhost:{tls}", "self-signed certificate in"),
        (f"rediss://localhost:{servers.port(papers.expired)}?{papers.trust}", "certificate has expired"),
        (f"rediss://localhost:{servers.port(papers.elsewhere)}?{papers.trust}", "Hostname mismatch"),
        (f"redis://localhost:{tls}", "is it a port for TLS, expected rediss?"),
        (f"rediss://localhost:{plain.port}?{papers.trust}", r"within 500 ms \(does this port speak TLS\?\)"),
    ):
        with pytest.raises(Unreachable, match=words) as caught:
            await Connector(url, connect_timeout_ms=500 if "within" in words else 5_000).open()
        assert "\n" not in str(caught.value)
        assert "_ssl.c" not in str(caught.value)
    lenient = f"rediss://localhost:{servers.port(papers.elsewhere)}?{papers.trust}&ssl_check_hostname=false"
    async with connect(lenient) as connector:
        assert await connector.call("PING") == b"PONG"


def test_files_that_cannot_be_used_are_told_before_anything_is_connected(papers: Papers, tmp_path: Path) -> None:
    """A file that is not there, a key without its certificate, a certificate without or with another's key, a file that
    is none: ConfigError with the option's name.
    """
    (tmp_path / "none.pem").write_text("nothing")
    client, stranger = papers.client, papers.stranger
    for options, words in (
        ("ssl_ca_certs=/no/such/file", "ssl_ca_certs: it is not there"),
        ("ssl_ca_path=/no/such/folder", "ssl_ca_path: it is not there"),
        ("ssl_certfile=/no/such/file", "ssl_certfile: it is not there"),
        (f"ssl_certfile={client.certificate}&ssl_keyfile=/no/such/file", "ssl_keyfile: it is not there"),
        (f"ssl_keyfile={client.key}", "ssl_keyfile without ssl_certfile"),
        (f"ssl_certfile={client.certificate}", "TLS options cannot be used: .*is it the key"),
        (
            f"ssl_certfile={client.certificate}&ssl_keyfile={stranger.key}",
            "TLS options cannot be used: .*is it the key",
        ),
        (f"ssl_ca_certs={tmp_path / 'none.pem'}", "TLS options cannot be used: SSLError"),
        ("ssl_ciphers=nonesuch", "TLS options cannot be used"),
        ("ssl_min_version=SSLv3", "ssl_min_version 'sslv3', expected TLSv1.2 or TLSv1.3"),
        ("ssl_check_hostname=perhaps", "ssl_check_hostname 'perhaps', expected true or false"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            Connector(f"rediss://host?{options}")
        assert "\n" not in str(caught.value)


def test_the_command_line_says_it_in_one_line(
    servers: Servers, papers: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    """A certificate that is not trusted ends with code 3, a file that is not there with code 2: one line."""
    port = servers.port(papers.server)
    for url, code, words in (
        (f"rediss://localhost:{port}", 3, "certificate verify failed"),
        (f"rediss://localhost:{port}?ssl_ca_certs=/no/such/file", 2, "ssl_ca_certs: it is not there"),
    ):
        assert main(("enqueue", "q", "{}", "--url", url)) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_a_probe_over_tls_is_cheap(servers: Servers, papers: Papers, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows a certificate and trusts an authority as a worker does, without a client library; what is not trusted,
    or no file, is one line.
    """
    url = f"rediss://localhost:{servers.port(papers.server, clients='yes')}"
    options = f"{papers.trust}&{papers.shows(papers.client)}&ssl_min_version=TLSv1.2"
    assert heavy_imports("ping", "--url", f"{url}?{options}") == []
    for given, code, words in (
        (papers.shows(papers.client), 3, "certificate verify failed"),
        (options.replace("ssl_certfile", "ssl_ca_path"), 2, "ssl_keyfile without ssl_certfile"),
        ("ssl_ca_certs=/no/such/file", 2, "ssl_ca_certs: it is not there"),
        ("ssl_ciphers=none", 2, "TLS options cannot be used"),
    ):
        assert main(("ping", "--url", f"{url}?{given}")) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert main(("ping", "--url", f"{url}?ssl_cert_reqs=none&{papers.shows(papers.client)}")) == 0


async def test_sentinels_and_servers_with_tls(papers: Papers, own_server: OwnServer) -> None:
    """`rediss+sentinel://`: the sentinels and the server that they name speak TLS alone, and each has a login of its
    own.

    Report 103 (celery/celery#8016).
    """
    tls = server_tls(papers.authority, papers.server, clients="yes")
    port = free_port()
    server = own_server(binary=redis_server(), args=("--tls-port", str(port), *as_arguments(tls)))
    server.admin.acl_setuser("work", enabled=True, passwords="+p@ss", keys=["*"], channels=["*"], categories=["+@all"])
    sentinel = Sentinel(binary=redis_server(), tls=[*as_lines(tls), "tls-replication yes"])
    try:
        watching = [f"sentinel monitor main 127.0.0.1 {port} 1", "user asker on >w@tch +@all", "user default off"]
        sentinel.start(watching)
        logins = f"sentinel_username=asker&sentinel_password=w%40tch&{papers.trust}&{papers.shows(papers.client)}"
        url = f"rediss+sentinel://work:p%40ss@127.0.0.1:{sentinel.port}/main?{logins}"
        await sentinel.listens()
        async with connect(url) as connector:
            assert await connector.call("ACL", "WHOAMI") == b"work"
            assert await connector.call("PING") == b"PONG"
    finally:
        sentinel.close()
