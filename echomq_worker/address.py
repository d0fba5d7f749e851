"""A server's URL read and checked, as a value; and the same URL with its secrets masked.

Source: issue "The five promises", Topologies; the options are those that redis-py gives in its URLs, by the same names.
Nothing of a URL is quoted in an error before its shape is known to be right: a `/`, `?` or `#` in a password that is
not escaped ends the host part early, and then the parts hold pieces of the password.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, quote, unquote

from echomq_worker.errors import ConfigError

_MASK = "***"
_LARGEST_PORT = 65_535
_SHOWN_CHARACTERS = 40
_COMMON_OPTIONS = frozenset({"db", "username", "password"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)
# If `password` is misspelt the option is unknown, but its value is still a password.
_SHOWN_OPTIONS = (_COMMON_OPTIONS | _SENTINEL_OPTIONS | _TLS_OPTIONS) - {
    "password",
    "sentinel_password",
    "ssl_password",
}
_YES = frozenset({"1", "true", "t", "yes", "y"})
_NO = frozenset({"0", "false", "f", "no", "n"})
_TLS_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_UNREADABLE = (
    "url: the host or port cannot be read, expected such as redis://user:password@host:6379/0 "
    "with / ? # @ : and % in user and password written as %2F %3F %23 %40 %3A %25"
)


class Kind(Enum):
    """What is behind a URL."""

    SERVER = "server"
    UNIX = "unix"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Host(NamedTuple):
    """A name or IP address (of IPv6 without brackets) and a port."""

    name: str
    port: int


_SCHEMES = {
    "redis": (Kind.SERVER, False),
    "rediss": (Kind.SERVER, True),
    "unix": (Kind.UNIX, False),
    "redis+sentinel": (Kind.SENTINEL, False),
    "rediss+sentinel": (Kind.SENTINEL, True),
    "redis+cluster": (Kind.CLUSTER, False),
    "rediss+cluster": (Kind.CLUSTER, True),
}
_PORTS = {Kind.SERVER: 6379, Kind.SENTINEL: 26379, Kind.CLUSTER: 6379}
_EXAMPLES = {
    Kind.SERVER: "redis://host:6379/0",
    Kind.UNIX: "unix:///run/valkey.sock?db=0",
    Kind.SENTINEL: "redis+sentinel://host1:26379,host2:26379,host3:26379/service/0",
    Kind.CLUSTER: "redis+cluster://host1:6379,host2:6379",
}


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says. `safe` is the URL with secrets masked.

    `hosts` are one server, the sentinels, or nodes of the cluster to ask first; `path` is a unix socket's. `service` is
    what sentinels call the primary. `tls` are arguments of redis-py's TLS connection, None where there is no TLS.
    """

    kind: Kind
    safe: str
    hosts: tuple[Host, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL; raises ConfigError, one line that never holds a password."""
        parts = _Parts.checked(url)
        kind, has_tls = _SCHEMES[parts.scheme]
        safe = mask(url)
        options = _options(parts, kind, safe, has_tls=has_tls)
        service, db = _service_and_database(parts, kind, safe, options)
        username, password = parts.login()
        return cls(
            kind=kind,
            safe=safe,
            hosts=_hosts(parts, kind),
            path=unquote(parts.path) if kind is Kind.UNIX else "",
            service=service,
            db=db,
            username=username or options.get("username", ""),
            password=password or options.get("password", ""),
            sentinel_username=options.get("sentinel_username", ""),
            sentinel_password=options.get("sentinel_password", ""),
            tls=_tls(options, safe) if has_tls else None,
        )


class _Parts(NamedTuple):
    scheme: str
    userinfo: str
    at: str
    hosts: str
    path: str
    query: str

    @classmethod
    def of(cls, url: str) -> _Parts | None:
        """The parts of a URL, None where a character that is not escaped may have torn them."""
        scheme, _, rest = url.partition("://")
        rest, hash_mark, _ = rest.partition("#")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        torn = hash_mark or "@" in path or "@" in query
        return None if torn else cls(scheme.lower(), userinfo, at, hosts, slash + path, query)

    @classmethod
    def checked(cls, url: object) -> _Parts:
        if not isinstance(url, str) or not url:
            raise ConfigError("url: expected a text such as redis://host:6379/0, got none")
        if any(character.isspace() or not character.isprintable() for character in url):
            raise ConfigError("url: holds a space or a control character, expected such as redis://host:6379/0")
        scheme, has_scheme, rest = url.partition("://")
        if not has_scheme or scheme.lower() not in _SCHEMES:
            raise ConfigError(
                "url: expected a scheme of redis://, rediss:// or unix://, redis+sentinel:// or redis+cluster:// "
                "(rediss+… for TLS)"
            )
        kind = _SCHEMES[scheme.lower()][0]
        parts = cls.of(url)
        if parts is None:
            # Torn: if what stands for the host cannot be one, that is the first thing to say.
            authority = rest.split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
            if kind is not Kind.UNIX:
                _read_hosts(authority.rpartition("@")[2], kind)
            raise ConfigError("url: a / ? # or @ in user, password and path must be written as %2F %3F %23 or %40")
        return parts

    def login(self) -> tuple[str, str]:
        """User and password."""
        user, _, password = self.userinfo.partition(":")
        return unquote(user), unquote(password)


def mask(url: str) -> str:
    """The URL with passwords replaced by `***`, fit for logs; `***` alone where its parts cannot be told apart."""
    parts = _Parts.of(url) if url.isprintable() else None
    if parts is None or parts.scheme not in _SCHEMES or parts.hosts.count("[") != parts.hosts.count("]"):
        return _MASK
    login = f"{parts.userinfo.partition(':')[0]}:{_MASK}" if ":" in parts.userinfo else parts.userinfo
    query = "&".join(
        f"{quote(name)}={quote(value, safe='/:') if name in _SHOWN_OPTIONS else _MASK}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    return f"{parts.scheme}://{login}{parts.at}{parts.hosts}{parts.path}{'?' if query else ''}{query}"


def _refuse(safe: str, why: str) -> NoReturn:
    raise ConfigError(f"url {safe}: {why}") from None


def _hosts(parts: _Parts, kind: Kind) -> tuple[Host, ...]:
    if kind is not Kind.UNIX:
        return _read_hosts(parts.hosts, kind)
    if not parts.path.strip("/"):
        raise ConfigError(f"url: no socket path, expected such as {_EXAMPLES[kind]}")
    if parts.hosts:
        raise ConfigError(f"url: unix:// names a host, expected a path behind a third slash, such as {_EXAMPLES[kind]}")
    return ()


def _read_hosts(text: str, kind: Kind) -> tuple[Host, ...]:
    if not text:
        raise ConfigError(f"url: no host, expected such as {_EXAMPLES[kind]}")
    one_by_one = text.split(",")
    if len(one_by_one) > 1 and kind is Kind.SERVER:
        raise ConfigError("url: several hosts, expected one, or a scheme of redis+sentinel:// or redis+cluster://")
    hosts = tuple(_host(one, kind) for one in one_by_one)
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"url: a host stands there twice, expected each once, such as {_EXAMPLES[kind]}")
    return hosts


def _host(text: str, kind: Kind) -> Host:
    name, colon, port = text.rpartition(":") if text.rpartition("]")[2].count(":") else (text, "", "")
    if name.startswith("[") != name.endswith("]") or (":" in name and not name.startswith("[")):
        raise ConfigError(_UNREADABLE)
    name = unquote(name.removeprefix("[").removesuffix("]")).lower()
    if not name:
        raise ConfigError(f"url: no host, expected such as {_EXAMPLES[kind]}")
    if not colon or not port:
        return Host(name, _PORTS[kind])
    if not (port.isascii() and port.isdigit() and len(port) <= len(str(_LARGEST_PORT)) and int(port) <= _LARGEST_PORT):
        raise ConfigError(_UNREADABLE)
    if int(port) == 0:
        raise ConfigError("url: port 0, expected 1 to 65535")
    return Host(name, int(port))


def _options(parts: _Parts, kind: Kind, safe: str, *, has_tls: bool) -> dict[str, str]:
    known = _COMMON_OPTIONS | (_TLS_OPTIONS if has_tls else frozenset())
    known |= _SENTINEL_OPTIONS if kind is Kind.SENTINEL else frozenset()
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            hint = ", and the scheme rediss for TLS" if name in _TLS_OPTIONS else ""
            _refuse(safe, f"unknown option {name!r}, expected one of {', '.join(sorted(known))}{hint}")
        if name in options:
            _refuse(safe, f"option {name} stands there twice, expected once")
        options[name] = value
    return options


def _service_and_database(parts: _Parts, kind: Kind, safe: str, options: Mapping[str, str]) -> tuple[str, int]:
    service, path = "", "" if kind is Kind.UNIX else parts.path.strip("/")
    if kind is Kind.SENTINEL:
        service, _, path = path.partition("/")
        service = unquote(service)
        if not service or not all(letter.isascii() and (letter.isalnum() or letter in ".-_") for letter in service):
            said = f"service {service[:_SHOWN_CHARACTERS]!r}" if service else "no service"
            _refuse(safe, f"{said}, expected the name that sentinels give the primary, such as {_EXAMPLES[kind]}")
    db = _number(options.get("db", path or "0"), safe)
    if path:
        _number(path, safe)
    if kind is Kind.CLUSTER and db:
        _refuse(safe, f"database {db}, a cluster has database 0 only")
    return service, db


def _number(text: str, safe: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _SHOWN_CHARACTERS):
        _refuse(safe, f"database {text[:_SHOWN_CHARACTERS]!r}, expected a number of 0 or more")
    return int(text)


def _tls(options: Mapping[str, str], safe: str) -> Mapping[str, Any]:
    values: dict[str, Any] = {name: value for name, value in options.items() if name in _TLS_OPTIONS}
    if "ssl_check_hostname" in values:
        said = values["ssl_check_hostname"].lower()
        if said not in _YES | _NO:
            _refuse(safe, f"ssl_check_hostname {said[:_SHOWN_CHARACTERS]!r}, expected true or false")
        values["ssl_check_hostname"] = said in _YES
    if "ssl_min_version" in values:
        said = values["ssl_min_version"].lower().replace("_", ".")
        if said not in _TLS_VERSIONS:
            _refuse(safe, f"ssl_min_version {said[:_SHOWN_CHARACTERS]!r}, expected TLSv1.2 or TLSv1.3")
        values["ssl_min_version"] = _TLS_VERSIONS[said]
    return MappingProxyType(values)
