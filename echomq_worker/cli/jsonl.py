"""A file of jobs, one JSON value per line: checked whole before the first is sent, then read again, never held whole.

Source: issue "A worker that runs jobs", Daemon and CLI (`--from-file`). A line is a payload, sent byte for byte; with
`envelopes` it is an object: `payload` (any JSON, sent compact) and, as they apply, `id`, `group`, `in_ms`, `at`,
`dedup`, `dedup_ttl_ms`, `expires_in_ms`, `expires_at`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from echomq_worker.admission import New, terms_of
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import at_ms
from echomq_worker.errors import ConfigError, InvalidArgument, InvalidId
from echomq_worker.identity import JOB, check_id, group_for, is_branded

_KEYS = ("id", "group", "in_ms", "at", "dedup", "dedup_ttl_ms", "expires_in_ms", "expires_at")
_BOM = b"\xef\xbb\xbf"
_EVERY = 1_000


def lane_of(group: str | None) -> str | None:
    """The lane's branded id: the text itself when it is one, else the id that stands for the text.

    Raises ConfigError for an empty text.
    """
    if group == "":
        raise ConfigError("group='': expected a branded id, or a text that is not empty")
    return group if group is None or is_branded(group) else group_for(group)


class JobFile:
    """The jobs of an open file. `check()` first, which counts them, then `read()`."""

    def __init__(self, name: str, stream: IO[bytes], *, envelopes: bool, template: New) -> None:
        self.name = name
        self._stream = stream
        self._envelopes = envelopes
        self._template = template
        self.total = 0

    def check(self) -> None:
        """Read every line. Raises ConfigError with the file's name and the line's number for the first bad one."""
        with progress_bar(f"check {self.name}") as bar:
            for _ in self.read():
                self.total += 1
                if self.total % _EVERY == 0:
                    bar(self.total, 0)

    def read(self) -> Iterator[tuple[int, New]]:
        """Line number and job of every line that is not blank."""
        for number, raw in enumerate(self._lines(), start=1):
            line = (raw.removeprefix(_BOM) if number == 1 else raw).strip(b" \t\r\n")
            if line:
                yield number, self._job(number, line)

    def _lines(self) -> Iterator[bytes]:
        try:
            self._stream.seek(0)
            yield from self._stream
        except OSError as error:
            raise _unreadable(self.name, error) from None

    def _job(self, number: int, line: bytes) -> New:
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except UnicodeDecodeError:
            self._refuse(number, "it is not UTF-8, expected JSON")
        except RecursionError:
            self._refuse(number, "it is nested too deep, expected JSON")
        except json.JSONDecodeError as error:
            # Its own text counts lines too, and to it this one is the first.
            self._refuse(number, f"{error.msg} at column {error.colno}, expected JSON")
        except ValueError as error:
            self._refuse(number, f"{error}, expected JSON")
        if not self._envelopes:
            return replace(self._template, payload=line)
        if not isinstance(value, dict) or not {"payload"} <= value.keys() <= {"payload", *_KEYS}:
            self._refuse(number, f"expected an object with payload and, as they apply, {', '.join(_KEYS)}")
        try:
            return _unwrapped(value)
        except (ConfigError, InvalidArgument, InvalidId) as error:
            self._refuse(number, str(error))

    def _refuse(self, number: int, why: str) -> NoReturn:
        raise ConfigError(f"{self.name}:{number}: {why}; nothing of the file was enqueued") from None


@contextmanager
def open_jobs(path: str, *, envelopes: bool, template: New) -> Iterator[JobFile]:
    """The jobs of a file; `-` is standard input, kept in a temporary file. `template` gives group and due time.

    Raises ConfigError where the file cannot be read.
    """
    try:
        stream = _spooled() if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(path, error) from None
    jobs = JobFile("standard input" if path == "-" else path, stream, envelopes=envelopes, template=template)
    with stream:
        yield jobs


def _unreadable(name: str, error: OSError) -> ConfigError:
    return ConfigError(f"--from-file={name!r}: {error.strerror or error}, expected a file that can be read")


def _spooled() -> IO[bytes]:
    stream = tempfile.TemporaryFile()  # noqa: SIM115 - closed by open_jobs
    shutil.copyfileobj(sys.stdin.buffer, stream)
    return stream


def _unwrapped(value: dict[str, Any]) -> New:
    id, group, in_ms, at, dedup, ttl_ms, expires_in_ms, expires_at = (value.get(name) for name in _KEYS)
    if id is not None:
        check_id(id)
        if not id.startswith(JOB):
            raise InvalidId(f"id {id}: expected one of the namespace {JOB}")
    if group is not None and not (isinstance(group, str) and group):
        raise InvalidArgument("group: expected a text that is not empty")
    if in_ms is not None and (type(in_ms) is not int or in_ms < 0):
        raise InvalidArgument("in_ms: expected an integer of 0 or more (milliseconds)")
    if in_ms is not None and at is not None:
        raise InvalidArgument("in_ms and at: expected one of them")
    if expires_in_ms is not None and expires_at is not None:
        raise InvalidArgument("expires_in_ms and expires_at: expected one of them")
    payload = json.dumps(value["payload"], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    due, until = _moment_of("at", at), _moment_of("expires_at", expires_at)
    new = New(payload, id, lane_of(group), in_ms, due, dedup, ttl_ms, expires_in_ms, until)
    terms_of(new)
    return new


def _moment_of(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return at_ms(value, name)
    if type(value) is not int:
        raise InvalidArgument(f"{name}: expected ms since 1970, or ISO 8601 with a zone")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
