"""A server asked over bare sockets: what a probe asks, of a URL of any kind, without the client library.

Source: issue "Made for the people who run it" (`health`: under 100 ms of CPU); user-needs 100. What is asked is what a
connection's handshake asks, but that nothing is ever written: the login, PING, the fence; of sentinels where the
primary is, of it whether it says so itself; in a cluster the node that owns the fence's slot.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from echomq_worker.errors import (
    LOGIN_REFUSALS,
    AuthenticationFailed,
    ConfigError,
    EchoMQError,
    FenceRefused,
    Unavailable,
    Unreachable,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from echomq_worker.address import Address, Host

FENCE_KEY = "{emq}:version"
_IN_OPENSSL = re.compile(r" \(_ssl\.c:\d+\)")
# What one sentinel, or node of a cluster, gets to answer before the next is asked.
_PATIENCE_S = 1.0
_NO_VALKEY = "the connection ended, or this is no Valkey"


class Refusal(NamedTuple):
    """An error reply."""

    text: str


class Login(NamedTuple):
    """Who asks: a user (may be empty) and a password, None without any; and in which database."""

    user: str
    password: str | None
    db: int


class Moved(Exception):
    """A node of a cluster that does not own the fence's slot: the arguments are the host and the port of who does."""


def talk(connection: socket.socket, commands: Sequence[Sequence[str]], where: str) -> list[Any]:
    """Send commands and read their replies, fewer behind a refusal. Raises OSError, Unreachable for no Valkey."""
    with connection.makefile("rb") as replies:
        connection.sendall(b"".join(map(_packed, commands)))
        said: list[Any] = []
        for command in commands:
            try:
                said.append(_read(replies))
            except (EOFError, ValueError):
                if said and isinstance(said[-1], Refusal):
                    # A server that has refused may close the connection.
                    break
                raise Unreachable(f"{where}: {command[0]}: {_NO_VALKEY}") from None
        return said


def ask(connection: socket.socket, login: Login, version: str, where: str, *, about: Sequence[str] = ()) -> None:
    """Log in, PING, and compare the fence. `about`: what it is asked of itself, ROLE or CLUSTER MYID.

    Raises OSError, AuthenticationFailed, Unavailable, Unreachable, FenceRefused, ConfigError, Moved.
    """
    commands: list[tuple[str, ...]] = []
    if login.password is not None:
        commands.append(("AUTH", *((login.user,) if login.user else ()), login.password))
    # A user may be without SELECT, as long as it is database 0.
    if login.db:
        commands.append(("SELECT", str(login.db)))
    commands += [*((tuple(about),) if about else ()), ("PING",), ("GET", FENCE_KEY)]
    replies = talk(connection, commands, where)
    for (name, *_), reply in zip(commands, replies, strict=False):
        if name in about:
            _check_kind(reply, where)
        elif isinstance(reply, Refusal):
            _refuse(reply.text, name, where)
    found = replies[-1]
    if not isinstance(found, bytes | None):
        raise Unreachable(f"{where}: GET: {_NO_VALKEY}")
    # Absent is a fresh store: the first worker claims it, a probe does not.
    if found is not None and found != version.encode("utf-8", "surrogateescape"):
        raise FenceRefused(version, found.decode("utf-8", "backslashreplace"))


def _check_kind(reply: Any, where: str) -> None:
    # A server that refuses the question is taken to be what the URL says.
    if isinstance(reply, Refusal) and "cluster support disabled" in reply.text:
        raise ConfigError(f"{where}: this is not a node of a cluster, expected a URL of redis:// for it")
    if isinstance(reply, list) and reply[:1] != [b"master"]:
        raise Unreachable(f"{where}: a sentinel names it as the primary, and it says that it is none (a failover?)")


def probe(address: Address, context: SSLContext | None, version: str, timeout_s: float) -> str:
    """Ask the server behind a URL of any kind; answers what it says of itself for the line of a pong.

    Raises OSError, UnicodeError, and what `ask` raises.
    """
    login = Login(address.username, address.password or None, address.db)
    kind, until = address.kind.value, monotonic() + timeout_s
    if kind == "sentinel":
        host, where = _named(address, context, until)
        with _connect(host, context, until) as connection:
            ask(connection, login, version, where, about=("ROLE",))
        return where
    if kind == "cluster":
        return _ask_cluster(address, context, login, version, until)
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(address.path)
            ask(connection, login, version, address.safe)
        return address.safe
    with _connect(address.hosts[0], context, until) as connection:
        _asked_alone(connection, login, version, address.safe)
    return address.safe


def _asked_alone(connection: socket.socket, login: Login, version: str, where: str) -> None:
    try:
        ask(connection, login, version, where)
    except Moved:
        raise not_alone(where) from None


def not_alone(where: str) -> ConfigError:
    """What is wrong with a URL of one server where there is a cluster."""
    return ConfigError(f"{where}: this is a node of a cluster, expected a URL of redis+cluster:// for it")


def context_for(address: Address) -> SSLContext | None:
    """The TLS of a URL, as redis-py has it, None without. Raises OSError, ValueError, KeyError."""
    if address.tls is None:
        return None
    import ssl

    said = address.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checked = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    mode = checked[said.get("ssl_cert_reqs", "required")]
    context.check_hostname = mode != ssl.CERT_NONE and said.get("ssl_check_hostname", True)
    context.verify_mode = mode
    own, path = said.get("ssl_ca_certs"), said.get("ssl_ca_path")
    if own or path:
        context.load_verify_locations(cafile=own, capath=path)
    elif mode != ssl.CERT_NONE:
        # Loading these takes a while, so it is done only when the URL names no others.
        context.load_default_certs()
    if said.get("ssl_keyfile") and not said.get("ssl_certfile"):
        raise ValueError("ssl_keyfile")
    if said.get("ssl_certfile"):
        context.load_cert_chain(said["ssl_certfile"], said.get("ssl_keyfile"), said.get("ssl_password"))
    if "ssl_min_version" in said:
        context.minimum_version = said["ssl_min_version"]
    if "ssl_ciphers" in said:
        context.set_ciphers(said["ssl_ciphers"])
    return context


def why(error: OSError) -> str:
    """What a socket or TLS says, in words."""
    return _IN_OPENSSL.sub("", error.strerror or str(error) or type(error).__name__)


def _named(address: Address, context: SSLContext | None, until: float) -> tuple[Host, str]:
    """The primary that the first of the sentinels names which answers."""
    from echomq_worker.address import Host

    refused: list[str] = []
    patience_s = _patience_s(address, until)
    password = address.sentinel_password or None
    user = (address.sentinel_username,) if address.sentinel_username else ()
    commands: list[tuple[str, ...]] = [] if password is None else [("AUTH", *user, password)]
    commands.append(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service))
    for host in address.hosts:
        at = _at(host)
        try:
            with _connect(host, context, min(until, monotonic() + patience_s)) as connection:
                replies = talk(connection, commands, at)
        except (OSError, Unreachable) as error:
            refused.append(f"{at}: {why(error)}" if isinstance(error, OSError) else str(error))
            continue
        said = next((one for one in replies if isinstance(one, Refusal)), replies[-1])
        if isinstance(said, Refusal):
            refused.append(f"{at}: {said.text if len(commands) == 1 else 'it refuses the login'}")
        elif said is None:
            refused.append(f"{at}: it knows no service {address.service!r}")
        else:
            try:
                found = Host(said[0].decode(), int(said[1]))
            except (AttributeError, IndexError, TypeError, ValueError):
                refused.append(f"{at}: {_NO_VALKEY}")
                continue
            return found, f"{address.safe}: {_at(found)}"
    raise Unreachable(f"{address.safe}: no sentinel names a primary: {'; '.join(refused)}")


def _ask_cluster(address: Address, context: SSLContext | None, login: Login, version: str, until: float) -> str:
    """Ask the nodes of the URL until one answers, and who owns the fence's slot."""
    refused: list[str] = []
    patience_s = _patience_s(address, until)
    for host in address.hosts:
        try:
            with _connect(host, context, min(until, monotonic() + patience_s)) as connection:
                where = f"{address.safe}: {_at(host)}"
                ask(connection, login, version, where, about=("CLUSTER", "MYID"))
        except OSError as error:
            refused.append(f"{_at(host)}: {why(error)}")
        except Moved as error:
            owner = type(host)(error.args[0] or host.name, error.args[1])
            where = f"{address.safe}: {_at(owner)}"
            with _connect(owner, context, until) as connection:
                _asked_alone(connection, login, version, where)
            return where
        else:
            return where
    raise Unreachable(f"{address.safe}: {'; '.join(refused)}")


def _patience_s(address: Address, until: float) -> float:
    return min(_PATIENCE_S, max(0.0, until - monotonic()) / (len(address.hosts) + 1))


def _connect(host: Host, context: SSLContext | None, until: float) -> socket.socket:
    opened = socket.create_connection(host, timeout=max(0.001, until - monotonic()))
    if context is None:
        return opened
    try:
        return context.wrap_socket(opened, server_hostname=host.name)
    except BaseException:
        opened.close()
        raise


def _at(host: Host) -> str:
    return f"[{host.name}]:{host.port}" if ":" in host.name else f"{host.name}:{host.port}"


def _packed(command: Sequence[str]) -> bytes:
    words = [word.encode() for word in command]
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)])


def _read(replies: IO[bytes]) -> Any:
    """One reply. Raises EOFError, ValueError for what is none, OSError."""
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        return Refusal(rest.decode("utf-8", "backslashreplace"))
    if kind == b":":
        return int(rest)
    if kind not in {b"$", b"*"}:
        raise ValueError
    size = int(rest)
    if size < 0:
        return None
    if kind == b"*":
        return [_read(replies) for _ in range(size)]
    whole = replies.read(size + 2)
    if len(whole) < size + 2:
        raise EOFError
    return whole[:-2]


def _refuse(text: str, command: str, where: str) -> None:
    if text.startswith("MOVED"):
        host, _, port = text.rsplit(maxsplit=1)[-1].rpartition(":")
        if not port.isdigit():
            raise Unreachable(f"{where}: {command}: {_NO_VALKEY}")
        raise Moved(host.strip("[]"), int(port))
    kind: type[EchoMQError] = AuthenticationFailed if text.partition(" ")[0] in LOGIN_REFUSALS else Unavailable
    raise kind(f"{where}: {command}: {text}")
