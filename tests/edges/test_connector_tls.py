"""TLS: a certificate that is trusted connects, one that is not is one clear line."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConfigError, Unreachable
from tests.support.valkey import ValkeyServer
from tests.support.waiting import in_time

# The server of the tests has no TLS, so it ends in front of it.
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for `localhost`, its key beside it."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


@asynccontextmanager
async def _in_front_of(server: ValkeyServer, certificate: Path) -> AsyncIterator[int]:
    """The port of a listener that speaks TLS with clients and plainly with the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    served: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    async with await asyncio.start_server(serve, "localhost", 0, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1]
        await asyncio.gather(*(task for task in served if task is not None))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_trusted_certificate_connects(
    url: str, server: ValkeyServer, certificate: Path, run: Callable[..., None]
) -> None:
    """With the authority named in the URL commands, large replies, parking and closing work as without TLS."""

    async def scenario() -> None:
        async with (
            _in_front_of(server, certificate) as port,
            connect(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}") as connector,
        ):
            big = b"x" * 2_000_000
            replies = await asyncio.gather(*(connector.call("ECHO", i) for i in range(100)))
            assert replies == [str(i).encode() for i in range(100)]
            assert await connector.call("ECHO", big) == big
            assert await connector.parking().blpop(["emq:{q}:wake"], 10) is None

    run(in_time(scenario()))


async def test_what_cannot_be_trusted_is_named(url: str, server: ValkeyServer, certificate: Path) -> None:
    """An unknown authority, another host name, or no TLS on one side is Unreachable, one line that says so.

    Report 103 (celery/celery#8016).
    """
    async with _in_front_of(server, certificate) as port:
        for bad, words in (
            (f"rediss://localhost:{port}", "CERTIFICATE_VERIFY_FAILED"),
            (f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}", "CERTIFICATE_VERIFY_FAILED|Connect call failed"),
            (f"rediss://127.0.0.1:{server.port}", "SSL|no connection within 300 ms"),
            (f"redis://localhost:{port}", "TLS on one side only|closed|broke"),
        ):
            with pytest.raises(Unreachable, match=words) as caught:
                await Connector(bad, connect_timeout_ms=300 if "within" in words else 20_000).open()
            assert "\n" not in str(caught.value)
        async with connect(f"rediss://localhost:{port}?ssl_cert_reqs=none") as connector:
            assert await connector.call("PING") == b"PONG"


def test_a_certificate_that_is_none_is_told_when_the_connector_is_made(tmp_path: Path) -> None:
    """A file that holds no certificate is a ConfigError at once, not at the first connection."""
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="TLS options cannot be used: SSLError"):
        Connector(f"rediss://host?ssl_ca_certs={tmp_path / 'ca.pem'}")
