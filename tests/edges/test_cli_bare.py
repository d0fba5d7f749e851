"""The probe over bare sockets: what sentinels and nodes say of each other, and what none of them is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from echomq_worker.cli import main
from tests.edges.test_cli_ping import server_that_says
from tests.support.valkey import ValkeyServer


def names(port: int) -> bytes:
    """What a sentinel says of a primary."""
    return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port)


def test_who_is_named_has_to_be_a_primary(
    own_server: Callable[..., ValkeyServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentinel that has not heard of a failover yet names one that is none any more."""
    server = own_server()
    with server_that_says(names(server.port)) as port:
        assert main(["ping", "--url", f"redis+sentinel://127.0.0.1:{port}/main"]) == 0
    server.admin.replicaof("127.0.0.1", "1")
    with server_that_says(names(server.port)) as port:
        assert main(["ping", "--url", f"redis+sentinel://127.0.0.1:{port}/main"]) == 3
    assert "says that it is none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"*-1\r\n", "it knows no service 'main'"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH"),
        (b"HTTP/1.1 400 Bad Request\r\n", "no Valkey"),
        (b"", "no Valkey"),
        (b"*2\r\n$9\r\n127.0", "no Valkey"),
        (b":7\r\n", "no Valkey"),
        (b"*1\r\n:1\r\n", "no Valkey"),
        (b"*2\r\n:1\r\n:1\r\n", "no Valkey"),
    ],
)
def test_what_is_no_answer_of_a_sentinel(capsys: pytest.CaptureFixture[str], answer: bytes, words: str) -> None:
    """One line and 3, that names who said it."""
    with server_that_says(answer) as port:
        assert main(["ping", "--url", f"redis+sentinel://127.0.0.1:{port}/main"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert f"127.0.0.1:{port}" in line


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (b"-ERR This instance has cluster support disabled\r\n", 2, "not a node of a cluster"),
        (b"$2\r\nid\r\n+PONG\r\n-CLUSTERDOWN Hash slot not served\r\n", 3, "CLUSTERDOWN"),
        (b"$2\r\nid\r\n+PONG\r\n-MOVED 1 127.0.0.1:1\r\n", 3, "refused"),
        (b"$2\r\nid\r\n+PONG\r\n-MOVED nowhere\r\n", 3, "no Valkey"),
        (b"+OK\r\n", 3, "no Valkey"),
        (b"$2\r\nid\r\n+PONG\r\n:7\r\n", 3, "no Valkey"),
    ],
)
def test_what_a_node_says(capsys: pytest.CaptureFixture[str], answer: bytes, code: int, words: str) -> None:
    """Who owns the fence's slot is asked, once; what is no node of a cluster, or has none that is served, is told."""
    with server_that_says(answer) as port:
        assert main(["ping", "--url", f"redis+cluster://127.0.0.1:{port}"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
