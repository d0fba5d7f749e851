"""HOST:PORT read and checked: where something listens. Imports nothing, for a container's health command reads it too.

Source: issue "Made for the people who run it" (`--http HOST:PORT`).
"""

from __future__ import annotations

FORM = "HOST:PORT, such as 127.0.0.1:9000 or [::]:9000"
_LARGEST_PORT = 65_535
_LONGEST = 255
# To listen on these is to listen on every address; to connect one has to name a single one.
_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to


def parse_hostport(text: str) -> tuple[str, int]:
    """The name or address (of IPv6 without brackets) and the port, 0 for any free one. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    plain = name.isascii() and name.isprintable() and not set(name) & set(" /@?#[]%") and len(name) <= _LONGEST
    readable = colon and name and plain and (":" in name) == bracketed
    if not readable or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= _LARGEST_PORT):
        raise ValueError(f"expected {FORM}")
    return name, int(port)


def show_hostport(host: str, port: int) -> str:
    """The two as one text again."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def asked_at(host: str) -> str:
    """The address on this machine of what listens on `host`."""
    return _EVERY.get(host, host)
