"""Logs: one line per event with the running job on it; nothing of a host's is touched; no value forges a line."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.logs import (
    TEXT_LIMIT,
    add_job,
    clean,
    configure_logging,
    current_job,
    get_logger,
    neutralise,
)


@dataclass(frozen=True)
class RunningJob:
    """What the executor puts into `current_job`."""

    queue: str = "emails"
    id: str = "JOB0KHTOWnGLuC"
    attempt: int = 2


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Whatever a test configures is undone."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def fail(text: str) -> None:
    """What a handler does that fails."""
    raise ValueError(text)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    """The JSON lines written so far."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_is_one_ascii_line_per_event() -> None:
    """Not a terminal: JSON, with time, level, logger and event first, plain ASCII."""
    stream = io.StringIO()
    configure_logging("auto", "info", stream=stream)

    get_logger("echomq_worker.consumer", queue="emails").info("job completed", duration_ms=1.5, to="zoë")

    (line,) = lines_of(stream)
    assert list(line) == ["timestamp", "level", "logger", "event", "queue", "duration_ms", "to"]
    assert line["timestamp"].endswith("Z")
    assert stream.getvalue().isascii()
    assert {**line, "timestamp": ""} == {
        "timestamp": "",
        "level": "info",
        "logger": "echomq_worker.consumer",
        "event": "job completed",
        "queue": "emails",
        "duration_ms": 1.5,
        "to": "zoë",
    }


@pytest.mark.parametrize(("log_format", "stream"), [("auto", Terminal()), ("console", io.StringIO())])
def test_console_on_a_terminal_or_on_request(log_format: Any, stream: io.StringIO) -> None:
    """A terminal gets text, and so does who asks for it."""
    configure_logging(log_format, "info", stream=stream)

    get_logger("x").info("job completed", attempt=1)

    assert "job completed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """No escape in a file, and none with NO_COLOR."""
    terminal, quiet, file = Terminal(), Terminal(), io.StringIO()

    configure_logging("console", "info", stream=terminal)
    get_logger("x").info("hello")
    configure_logging("console", "info", stream=file)
    get_logger("x").info("hello")
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logging("console", "info", stream=quiet)
    get_logger("x").info("hello")

    assert ["\x1b" in stream.getvalue() for stream in (terminal, file, quiet)] == [True, False, False]


def test_levels_below_the_one_that_is_set_are_off() -> None:
    """Warning shows warnings and errors, whichever logger they come from."""
    stream = io.StringIO()
    configure_logging("json", "warning", stream=stream)

    for log in (get_logger("ours"), structlog.get_logger(), logging.getLogger("theirs")):
        log.debug("no")
        log.info("no")
        log.warning("yes")
        log.error("yes")

    assert [line["event"] for line in lines_of(stream)] == ["yes"] * 6


def test_every_line_has_the_running_job() -> None:
    """Our lines, structlog's and the standard library's have queue, id and attempt of the job that runs there."""
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)

    def handler() -> None:
        current_job.set(RunningJob())
        get_logger("ours").info("a")
        structlog.get_logger().info("b")
        logging.getLogger("theirs").info("c")

    copy_context().run(handler)
    get_logger("ours").info("d")

    found = [(line.get("queue"), line.get("id"), line.get("attempt")) for line in lines_of(stream)]
    assert found == [("emails", "JOB0KHTOWnGLuC", 2)] * 3 + [(None, None, None)]


def test_a_thread_that_was_given_the_context_has_the_job_too() -> None:
    """A plain function runs in a thread with a copied context: its lines have the job as well."""
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)

    def handler() -> None:
        current_job.set(RunningJob())
        thread = threading.Thread(target=copy_context().run, args=(logging.getLogger("theirs").info, "in a thread"))
        thread.start()
        thread.join()

    copy_context().run(handler)

    assert lines_of(stream)[0]["id"] == "JOB0KHTOWnGLuC"


def test_what_a_line_says_itself_wins_over_the_running_job() -> None:
    """A line about another job than the one that runs keeps what it says."""

    def handler() -> dict[str, Any]:
        current_job.set(RunningJob())
        return dict(add_job(None, "info", {"event": "x", "id": "other"}))

    assert copy_context().run(handler) == {"event": "x", "id": "other", "queue": "emails", "attempt": 2}


@pytest.mark.parametrize("log_format", ["console", "json"])
@given(text=st.text())
def test_no_text_makes_a_second_line_or_reaches_the_terminal(log_format: Any, text: str) -> None:
    """Whatever an event or a value holds, it is one line without control characters, and it can be encoded."""
    stream = io.StringIO()
    configure_logging(log_format, "info", stream=stream)

    structlog.get_logger().info(text, value=text, values=[text, {text: text}])
    logging.getLogger("theirs").info("%s", text)

    written = stream.getvalue().encode()
    assert written.count(b"\n") == 2
    assert not any(byte < 0x20 and byte != 0x0A for byte in written)
    assert "\x9b" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_trace_cannot_pass_for_lines_of_its_own(log_format: Any) -> None:
    """The message of an exception comes with its trace, and no row of it looks like a log line."""
    stream = io.StringIO()
    configure_logging(log_format, "info", stream=stream)

    try:
        fail("boom\n2030-01-01T00:00:00Z [info] all is well\x1b[2J")
    except ValueError:
        get_logger("x").exception("job retried")
        logging.getLogger("theirs").exception("oh")

    rows = stream.getvalue().splitlines()
    assert "ValueError: boom" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    if log_format == "json":
        assert [json.loads(row)["event"] for row in rows] == ["job retried", "oh"]
    else:
        assert [row for row in rows if row.startswith("2030")] == []


def test_bytes_are_shown_by_their_length() -> None:
    """Bytes may be a payload: their length is enough, wherever they are. Report 91 (celery/celery#2143)."""
    event = neutralise(None, "info", {"a": b"secret", "b": [b"secret", {"c": bytearray(b"xy")}], "d": memoryview(b"z")})

    assert event == {"a": "<6 bytes>", "b": ["<6 bytes>", {"c": "<2 bytes>"}], "d": "<1 bytes>"}


def test_values_of_any_type_are_written() -> None:
    """What is no JSON is its repr, and a repr that fails is no reason to lose the line."""

    class Broken:
        """Cannot be shown."""

        def __repr__(self) -> str:
            raise RuntimeError("no")

    class Sneaky:
        """Shows an escape."""

        def __repr__(self) -> str:
            return "\x1b[2J"

    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    event = neutralise(None, "info", {"a": Broken(), "b": Sneaky(), "c": {1}, "d": None, "e": True, "f": deep})

    assert event["a"] == "<unprintable Broken>"
    assert event["b"] == "\\x1b[2J"
    assert (event["c"], event["d"], event["e"]) == ([1], None, True)
    json.dumps(event)


def test_a_huge_text_is_cut_in_the_middle() -> None:
    """A value of a megabyte does not become a line of a megabyte; its beginning and end stay."""
    cut = clean("a" * 500_000 + "z" * 500_000)

    assert len(cut) < TEXT_LIMIT + 100
    assert cut.startswith("aaa")
    assert cut.endswith("zzz")


def test_a_huge_trace_is_cut() -> None:
    """An exception whose text is a megabyte does not fill the disk."""
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)

    try:
        fail("x\n" * 1_000_000)
    except ValueError:
        get_logger("x").exception("job retried")

    assert len(stream.getvalue()) < 200_000


def test_a_stream_that_is_gone_loses_lines_not_jobs() -> None:
    """A closed stream, or one whose reader left, raises nothing into the code that logs."""

    class Gone(io.StringIO):
        """Its reader has left."""

        def write(self, _text: str) -> int:
            raise BrokenPipeError

    closed = io.StringIO()
    configure_logging("json", "info", stream=closed)
    closed.close()
    get_logger("x").info("into a closed stream")
    logging.getLogger("theirs").info("into a closed stream")
    configure_logging("json", "info", stream=Gone())
    get_logger("x").info("nobody reads")


def test_a_stream_that_cannot_encode_gets_escapes() -> None:
    """On a terminal of another encoding the line is written all the same."""
    raw = io.BytesIO()
    configure_logging("console", "info", stream=io.TextIOWrapper(raw, encoding="ascii"))

    get_logger("x").info("zoë")

    assert b"zo\\xeb" in raw.getvalue()


def test_a_record_that_cannot_be_formatted_is_no_error_of_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    """What the standard library does with a wrong format: it tells on stderr and goes on."""
    # Without pytest's own, which raises instead.
    logging.getLogger().handlers.clear()
    configure_logging("json", "info", stream=io.StringIO())

    logging.getLogger("theirs").info("%d", "no number")

    assert "Logging error" in capsys.readouterr().err


def test_configuring_again_replaces_and_leaves_other_handlers() -> None:
    """The second call wins, and a handler that somebody else put there stays."""
    other, first, second = logging.NullHandler(), io.StringIO(), io.StringIO()
    logging.getLogger().addHandler(other)
    configure_logging("json", "info", stream=first)
    configure_logging("json", "info", stream=second)

    logging.getLogger("theirs").info("once")

    assert (len(lines_of(first)), len(lines_of(second))) == (0, 1)
    assert other in logging.getLogger().handlers


def test_the_daemon_logs_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for what a command prints."""
    configure_logging("json", "info")

    get_logger("x").info("hello")

    written = capsys.readouterr()
    assert (written.out, json.loads(written.err)["event"]) == ("", "hello")


def test_warnings_of_python_come_along() -> None:
    """`warnings.warn` becomes a line."""
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)

    assert lines_of(stream)[0]["logger"] == "py.warnings"


def test_a_library_touches_nothing_of_its_host() -> None:
    """Asking for a logger and using it configures neither structlog nor a handler nor a level.
    Report 111 (celery/celery#2016).
    """
    root = logging.getLogger()
    before = (list(root.handlers), root.level, structlog.is_configured(), sys.stderr)

    get_logger("echomq_worker.consumer").bind(queue="emails").debug("hello")

    assert (list(root.handlers), root.level, structlog.is_configured(), sys.stderr) == before
    assert logging.getLogger("echomq_worker").handlers == []
    assert logging.getLogger("echomq_worker").level == logging.NOTSET


def test_a_host_with_standard_logging_gets_text_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Without structlog configured, lines are records of the standard logger of that name."""
    log = get_logger("echomq_worker.consumer", queue="emails").bind(name="100%s")
    with caplog.at_level("DEBUG", logger="echomq_worker"):
        for method in ("debug", "info", "warning", "error"):
            getattr(log, method)("job retried\n", attempt=2, payload=b"secret")
        try:
            fail("boom")
        except ValueError:
            log.exception("job dead")

    text = "job retried\\x0a queue=emails name=100%s attempt=2 payload=<6 bytes>"
    assert [record.getMessage() for record in caplog.records] == [text] * 4 + ["job dead queue=emails name=100%s"]
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "ERROR"]
    assert caplog.records[0].__dict__["echomq"]["attempt"] == 2
    assert caplog.records[0].funcName == "test_a_host_with_standard_logging_gets_text_and_fields"
    assert caplog.records[4].exc_info is not None


def test_a_level_that_is_off_at_the_host_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The host's levels hold for our lines."""
    with caplog.at_level("WARNING", logger="echomq_worker"):
        get_logger("echomq_worker.x").info("no")

    assert caplog.records == []


def test_a_host_with_structlog_gets_our_lines_there() -> None:
    """Where the host has configured structlog, its processors see our lines, with the name as a field."""
    with structlog.testing.capture_logs() as captured:
        structlog.configure(processors=structlog.get_config()["processors"])
        get_logger("echomq_worker.consumer", queue="emails").warning("job retried", attempt=1)

    (line,) = captured
    assert line == {
        "event": "job retried",
        "log_level": "warning",
        "logger": "echomq_worker.consumer",
        "queue": "emails",
        "attempt": 1,
    }
