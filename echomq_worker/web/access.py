"""Access: who may come in, under which host name, and how a form proves that it is ours. Values, no I/O.

Source: issue "Made for the people who run it", A dashboard (a token or basic auth, CSRF-safe). Sessions are signed and
kept by the browser: nothing of them is stored here, and several processes with one secret know each other's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

from echomq_worker.errors import ConfigError

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine, as a browser on it asks for them."""

SESSION_MS = 12 * 3_600_000
TOKEN_CHARACTERS = 16
_SECRET_BYTES = 16

Level = Literal["visitor", "in"]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in. Made by one of its three methods; the secret is in no representation of it."""

    kind: Literal["anybody", "token", "password"]
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def anybody(cls) -> Self:
        """Whoever can reach it: the loopback address, or an application that has asked who it is before."""
        return cls("anybody")

    @classmethod
    def by_token(cls, token: str) -> Self:
        """Whoever knows a token of 16 characters or more, given on a login page or as `Authorization: Bearer`.

        Raises ConfigError, which does not show it.
        """
        if len(token.strip()) < TOKEN_CHARACTERS or not token.isprintable():
            raise ConfigError(f"token of the dashboard: expected {TOKEN_CHARACTERS} printable characters or more")
        return cls("token", token.strip().encode())

    @classmethod
    def by_password(cls, name: str, password: str) -> Self:
        """Whoever gives this name and a password of 8 characters or more to the browser (HTTP basic).

        Raises ConfigError, which does not show them.
        """
        if not name or ":" in name or len(password) < 8 or not (name + password).isprintable():
            raise ConfigError("user of the dashboard: expected name:password, the password of 8 characters or more")
        return cls("password", f"{name}:{password}".encode())

    def is_token(self, given: str) -> bool:
        """Whether this is the token; takes as long for a wrong one."""
        return self.kind == "token" and _same(given.strip().encode("utf-8", "replace"), self.secret)

    def admits(self, authorization: str | None) -> bool:
        """Whether a header `Authorization` is enough to come in."""
        if self.kind == "anybody":
            return True
        scheme, _, given = (authorization or "").partition(" ")
        if self.kind == "token":
            return scheme.lower() == "bearer" and self.is_token(given)
        if scheme.lower() != "basic":
            return False
        try:
            pair = base64.b64decode(given, validate=True)
        except ValueError:
            return False
        return _same(pair, self.secret)


@dataclass(frozen=True, slots=True)
class Session:
    """Who asks: a random name, whether it has logged in, and until when (ms since 1970)."""

    name: str
    level: Level
    until_ms: int


class Doorman:
    """Signs sessions and the tokens of forms. `secret` is random where none is given, so that sessions end with the
    process; with an access of its own it is made of that, so that several processes agree. Raises ConfigError for a
    secret below 16 bytes.
    """

    __slots__ = ("_key", "access", "cookie", "hosts")

    def __init__(self, access: Access, *, secret: bytes | None = None, hosts: Collection[str] | None = None) -> None:
        if secret is not None and len(secret) < _SECRET_BYTES:
            raise ConfigError(f"secret of the dashboard: expected {_SECRET_BYTES} bytes or more")
        self.access = access
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        material = secret or access.secret or secrets.token_bytes(32)
        self._key = hashlib.sha256(b"echomq dashboard\0" + material).digest()
        # Cookies of one host are shared by all its ports: two dashboards must not overwrite each other's.
        self.cookie = f"emq_{self._sign('cookie', '')[:8].lower()}"

    def knows_host(self, host: str | None) -> bool:
        """Whether the request names a host that is ours: a page elsewhere can point a name of its own at this machine,
        and would then be of the same origin.
        """
        return self.hosts is None or _name_of(host or "") in self.hosts

    def new(self, level: Level, now_ms: int) -> Session:
        """A session that begins now."""
        return Session(secrets.token_hex(16), level, now_ms + SESSION_MS)

    def written(self, session: Session) -> str:
        """A session as its cookie."""
        text = f"{session.name}.{session.level}.{session.until_ms}"
        return f"{text}.{self._sign('session', text)}"

    def read(self, cookie: str | None, now_ms: int) -> Session | None:
        """The session of a cookie; None for one that is over, or not ours."""
        text, _, signature = (cookie or "").rpartition(".")
        if not text or not _same(signature.encode("utf-8", "replace"), self._sign("session", text).encode()):
            return None
        name, level, until = text.split(".")
        session = Session(name, "in" if level == "in" else "visitor", int(until))
        return session if session.until_ms > now_ms else None

    def form_token(self, session: Session) -> str:
        """What a form of this session carries."""
        return self._sign("form", session.name)

    def is_form_token(self, session: Session, given: str) -> bool:
        """Whether a form came from a page of this session."""
        return _same(given.encode("utf-8", "replace"), self.form_token(session).encode())

    def _sign(self, what: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{what}\0{text}".encode(), "sha256")
        return base64.b32encode(digest).decode().rstrip("=")


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from a page of the host that it is sent to, as far as the browser
    says: `Sec-Fetch-Site`, and `Origin` against `Host`. What is no browser says nothing, and has no cookie to abuse.
    """
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """A host without its port."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdecimal() and not name.endswith(":") else host.lower()


def _same(given: bytes, expected: bytes) -> bool:
    # Digests, so that not even the length is told by the time that it takes.
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(expected).digest())
