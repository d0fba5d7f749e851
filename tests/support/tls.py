"""Certificates for tests, made by openssl: two authorities, and what they have signed for servers and clients.

Servers with TLS are Debian's redis-server: the binary of `find_binary` has none.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
MISSING = [program for program in ("openssl", "redis-server") if shutil.which(program) is None]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority of its own in a directory; `certificate` is what clients trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        # Since Python 3.13 an authority has to say that it is one.
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", *usage, *_out(self.certificate, self._key)
        )

    def sign(self, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Pair:
        """A certificate for `names`, over for a day with `days=-1`."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request = self._folder / f"{name}.csr"
        _openssl(
            "req", "-new", *_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", *_out(request, pair.key)
        )
        signing = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days))
        _openssl(
            "x509", "-req", "-in", str(request), *signing, "-copy_extensions", "copyall", "-out", str(pair.certificate)
        )
        return pair


def server_tls(authority: Authority, pair: Pair, *, clients: str = "no") -> dict[str, str]:
    """Settings of a server for TLS, save its port; `clients` is `yes` where they have to show a certificate."""
    return {
        "tls-cert-file": str(pair.certificate),
        "tls-key-file": str(pair.key),
        "tls-ca-cert-file": str(authority.certificate),
        "tls-auth-clients": clients,
    }


def as_arguments(settings: dict[str, str]) -> list[str]:
    """The same on a server's command line."""
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def as_lines(settings: dict[str, str]) -> list[str]:
    """The same in a file of configuration."""
    return [f"{name} {value}" for name, value in settings.items()]


def redis_server() -> Path:
    """Debian's redis-server; LookupError says what to install."""
    found = shutil.which("redis-server")
    if found is None:
        raise LookupError("redis-server: not on PATH, expected apt-get install redis-server")
    return Path(found)


def _out(certificate: Path, key: Path) -> tuple[str, ...]:
    return "-out", str(certificate), "-keyout", str(key)


def _openssl(*arguments: str) -> None:
    command = ["openssl", *arguments]
    subprocess.run(command, check=True, capture_output=True)
