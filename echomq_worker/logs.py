"""Log lines: key and value, a line per event, the running job on every one of them, never a payload.

Source: issue "A worker that runs jobs", Logs; user-needs 90, 91, 111, 117. Only the command line calls
`configure_logging`: console on a terminal, JSON elsewhere. Used as a library the package configures nothing: its lines
go where the host's go, to the host's structlog when that is configured, else to the standard logger of that name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, Self, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["auto", "console", "json"]

TEXT_LIMIT = 8_192
TRACE_LIMIT = 65_536
_DEPTH_LIMIT = 4
_ROW = "  | "
_FIRST = ("timestamp", "level", "logger", "event")
# C0 and C1 controls (terminal escapes start there), line separators, direction overrides, lone surrogates.
_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class RunningJob(Protocol):
    """What a line says of the job that runs where it is written."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        ...

    @property
    def id(self) -> str:
        """The job's branded id."""
        ...

    @property
    def attempt(self) -> int:
        """Which claim of the job this is, from 1."""
        ...


current_job: ContextVar[RunningJob | None] = ContextVar("echomq_current_job", default=None)


class Logger(Protocol):
    """The part of a structlog logger that this package uses. Fields are keywords; `exc_info` adds the trace."""

    def bind(self, **fields: Any) -> Self:
        """A logger with these fields on every line as well."""
        ...

    def debug(self, event: str, **fields: Any) -> Any:
        """The start of a job."""
        ...

    def info(self, event: str, **fields: Any) -> Any:
        """An end as it should be, a beat's change."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """A retry, trouble that heals by itself."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """A death, trouble that does not heal."""
        ...

    def exception(self, event: str, **fields: Any) -> Any:
        """An error with the trace of the exception being handled."""
        ...


def get_logger(name: str = "echomq_worker", **fields: Any) -> Logger:
    """A logger with `fields` on every line. Ask when a component is built, not when a module is imported: where the
    lines go is decided here. A level that is off costs the call and nothing else.
    """
    if structlog.is_configured():
        logger: Logger = structlog.get_logger(name).bind(logger=name, **fields)
        return logger
    return _HostLogger(logging.getLogger(name), fields)


def configure_logging(log_format: LogFormat = "auto", level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send every line of this process to `stream` (stderr): for the owner of the process, never for a library.

    Lines of `structlog` and of the standard `logging` come out alike, each with the job that runs there. A repeated
    call replaces the earlier one; handlers that somebody else put on the root logger stay.
    """
    target = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    console = log_format == "console" or (log_format == "auto" and target.isatty())
    sink = _Sink(target)
    shared: list[Processor] = [
        add_job,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [
        structlog.processors.format_exc_info,
        _RowsOf(console=console),
        neutralise,
        _console(colors=target.isatty() and "NO_COLOR" not in os.environ) if console else to_json,
    ]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _SinkHandler)]:
        root.removeHandler(handler)
    handler = _SinkHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root.addHandler(handler)
    root.setLevel(number)
    logging.captureWarnings(capture=True)


def add_job(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The running job's queue, id and attempt, where the line does not say otherwise. A structlog processor."""
    job = current_job.get()
    if job is not None:
        event.setdefault("queue", job.queue)
        event.setdefault("id", job.id)
        event.setdefault("attempt", job.attempt)
    return event


def neutralise(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    r"""No value can forge a line or drive a terminal: controls become `\x1b`. Bytes are shown by their length."""
    for key, value in event.items():
        if isinstance(value, str):
            if key != "exception":
                event[key] = clean(value)
        elif value is not None and not isinstance(value, (int, float)):
            event[key] = _plain(value, _DEPTH_LIMIT)
    return event


def clean(text: str, *, limit: int = TEXT_LIMIT) -> str:
    """`text` without control characters, line breaks, direction overrides and lone surrogates, cut to `limit`."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}[... {len(text) - limit} characters]{text[-(limit // 2) :]}"
    return text if text.isprintable() else _HARMFUL.sub(_escaped, text)


def to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """One line of JSON in plain ASCII; time, level, logger and event come first."""
    ordered = {key: event[key] for key in _FIRST if key in event}
    ordered.update(event)
    return _ENCODER.encode(ordered)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _plain(value: object, depth: int) -> object:
    """`value` as JSON types whose texts are clean; what is no JSON type is its repr."""
    if value is None or type(value) in {int, float, bool}:
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if depth > 0 and isinstance(value, Mapping):
        return {clean(str(key)): _plain(inner, depth - 1) for key, inner in value.items()}
    if depth > 0 and isinstance(value, (Sequence, set, frozenset)):
        return [_plain(inner, depth - 1) for inner in value]
    return clean(_safe_repr(value))


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a line is not worth the job that it is about
        return f"<unprintable {type(value).__name__}>"


# Values are plain by then: `neutralise` comes first.
_ENCODER = json.JSONEncoder()


def _console(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, sort_keys=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
    )


class _RowsOf:
    """Makes a trace safe: each row cleaned and, on the console, led in, so that none passes for a line of its own."""

    def __init__(self, *, console: bool) -> None:
        self._lead = _ROW if console else ""

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        trace = event.get("exception")
        if isinstance(trace, str):
            if len(trace) > TRACE_LIMIT:
                trace = f"{trace[: TRACE_LIMIT // 2]}\n[...]\n{trace[-(TRACE_LIMIT // 2) :]}"
            event["exception"] = "\n".join(self._lead + clean(row) for row in trace.split("\n"))
        return event


class _Sink:
    """Writes whole lines to a stream from any thread. A stream that is gone loses lines, not jobs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        with self._lock:
            try:
                self._put(line)
            except UnicodeEncodeError:
                self._put(line.encode("ascii", "backslashreplace").decode("ascii"))

    def _put(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except UnicodeEncodeError:
            raise
        except (OSError, ValueError):  # closed, or its reader went away
            return

    debug = info = warning = error = exception = critical = fatal = msg = log = write


class _SinkHandler(logging.Handler):
    """Brings the lines of the standard `logging` to the same stream."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sink.write(self.format(record))
        except Exception:  # noqa: BLE001 - what every handler of the standard library does with a record it cannot format
            self.handleError(record)


class _HostLogger:
    """Lines for a host that has not configured structlog: text for its eyes, the fields as `record.echomq`."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, fields: Mapping[str, Any]) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: Any) -> _HostLogger:
        return _HostLogger(self._logger, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, {"exc_info": True, **fields})

    def _log(self, level: int, event: str, fields: MutableMapping[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = fields.pop("exc_info", None)
        said = neutralise(None, "", add_job(None, "", {**self._fields, **fields}))
        text = " ".join([clean(event), *(f"{key}={value}" for key, value in said.items())])
        # As the argument of "%s", so that a percent sign in a text is no format.
        self._logger.log(level, "%s", text, exc_info=exc_info, extra={"echomq": said}, stacklevel=3)
