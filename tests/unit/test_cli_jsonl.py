"""A file of jobs: the whole of it is checked, a bad line is named, and bytes stay what they are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.cli.jsonl import JobFile, lane_of, open_jobs
from echomq_worker.errors import ConfigError
from echomq_worker.identity import group_for
from echomq_worker.jobs import New

PLAIN = New(b"")


def jobs_of(path: Path, *, envelopes: bool = False, template: New = PLAIN) -> list[tuple[int, New]]:
    """The jobs of a file that has been checked."""
    with open_jobs(str(path), envelopes=envelopes, template=template) as jobs:
        jobs.check()
        found = list(jobs.read())
        assert jobs.total == len(found)
    return found


def test_a_line_is_a_payload_byte_for_byte(tmp_path: Path) -> None:
    """No line is written anew: spaces inside and the order of keys stay; blank lines and a byte order mark do not."""
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"b": 1,  "a":2}\r\n\n"text"\n 5 \n\xc3\xab'.replace(b"\xc3\xab", b'"\xc3\xab"'))

    assert jobs_of(path) == [
        (1, New(b'{"b": 1,  "a":2}')),
        (3, New(b'"text"')),
        (4, New(b"5")),
        (5, New('"ë"'.encode())),
    ]


def test_options_hold_for_every_line(tmp_path: Path) -> None:
    """Lane and due time of the command line go to each job."""
    path = tmp_path / "jobs.jsonl"
    path.write_text("1\n2\n")

    found = jobs_of(path, template=New(b"", group="GRP00000000001", in_ms=5))

    assert [job for _, job in found] == [New(text, group="GRP00000000001", in_ms=5) for text in (b"1", b"2")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{nope", "expected JSON"),
        (b'{"a": 1} x', "expected JSON"),
        (b"NaN", "NaN is no JSON, expected JSON"),
        (b'"\xff"', "it is not UTF-8, expected JSON"),
        (b"[" * 200_000, "nested too deep"),
    ],
)
def test_a_bad_line_is_named_and_not_quoted(tmp_path: Path, line: bytes, why: str) -> None:
    """File name and line number, the reason, and nothing of the line's content."""
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"1\n\n" + line + b"\n2\n")

    with pytest.raises(ConfigError) as caught:
        jobs_of(path)

    said = str(caught.value)
    assert said.startswith(f"{path}:3: ")
    assert why in said
    assert said.endswith("nothing of the file was enqueued")
    assert len(said) < 300


ENVELOPES: list[tuple[dict[str, Any], New]] = [
    ({"payload": {"a": 1}}, New(b'{"a":1}')),
    ({"payload": "ë"}, New('"ë"'.encode())),
    ({"payload": None, "id": None}, New(b"null")),
    ({"payload": 1, "id": "JOB0KHTOWnGLuC"}, New(b"1", id="JOB0KHTOWnGLuC")),
    ({"payload": 1, "group": "tenant-7"}, New(b"1", group=group_for("tenant-7"))),
    ({"payload": 1, "in_ms": 0}, New(b"1", in_ms=0)),
    ({"payload": 1, "at": 5}, New(b"1", at_ms=5)),
    ({"payload": 1, "at": "1970-01-01T00:00:01Z"}, New(b"1", at_ms=1_000)),
    ({"payload": 1, "dedup": "a", "dedup_ttl_ms": 5}, New(b"1", dedup="a", dedup_ttl_ms=5)),
    ({"payload": 1, "expires_in_ms": 7}, New(b"1", expires_in_ms=7)),
    ({"payload": 1, "expires_at": "1970-01-01T00:00:01Z"}, New(b"1", expires_at_ms=1_000)),
]


@pytest.mark.parametrize(("envelope", "job"), ENVELOPES)
def test_an_envelope_says_what_its_job_is(tmp_path: Path, envelope: dict[str, Any], job: New) -> None:
    """Payload as compact JSON, and id, lane and due time where they are given."""
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(envelope))

    assert jobs_of(path, envelopes=True) == [(1, job)]


@pytest.mark.parametrize(
    "envelope",
    [
        [],
        5,
        {},
        {"id": "JOB0KHTOWnGLuC"},
        {"payload": 1, "delay": 5},
        {"payload": 1, "id": "JOB1"},
        {"payload": 1, "id": 5},
        {"payload": 1, "id": "USR0KHTOWnGLuC"},
        {"payload": 1, "group": ""},
        {"payload": 1, "group": 5},
        {"payload": 1, "in_ms": -1},
        {"payload": 1, "in_ms": True},
        {"payload": 1, "in_ms": 1.5},
        {"payload": 1, "at": "tomorrow"},
        {"payload": 1, "at": []},
        {"payload": 1, "in_ms": 1, "at": 1},
        {"payload": 1, "dedup": ""},
        {"payload": 1, "dedup": 5},
        {"payload": 1, "dedup_ttl_ms": 5},
        {"payload": 1, "dedup": "a", "dedup_ttl_ms": 0},
        {"payload": 1, "expires_in_ms": -1},
        {"payload": 1, "expires_in_ms": "5"},
        {"payload": 1, "expires_at": True},
        {"payload": 1, "expires_at": 2**60},
        {"payload": 1, "expires_in_ms": 1, "expires_at": 1},
    ],
)
def test_a_wrong_envelope_is_named(tmp_path: Path, envelope: object) -> None:
    """A wrong key, type or value is told with file and line before anything is sent."""
    path = tmp_path / "jobs.jsonl"
    path.write_text(f'{{"payload": 1}}\n{json.dumps(envelope)}\n')

    with pytest.raises(ConfigError, match=r"jobs\.jsonl:2: .*nothing of the file was enqueued"):
        jobs_of(path, envelopes=True)


def test_a_line_that_is_no_json_is_counted_once(tmp_path: Path) -> None:
    """The file's line and the column in it: no second line number, which would be that of the line by itself."""
    path = tmp_path / "jobs.jsonl"
    path.write_text('1\n{"a": oops}\n')

    with pytest.raises(ConfigError) as caught:
        jobs_of(path)

    told = str(caught.value).removeprefix(f"{path}:2: ")
    assert "Expecting value at column 7, expected JSON; " in told
    assert "line" not in told


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=10))
def test_any_payload_survives_its_envelope(tmp_path_factory: pytest.TempPathFactory, payload: object) -> None:
    """What JSON holds is what the job's payload reads as, lone surrogates refused or kept."""
    path = tmp_path_factory.mktemp("jobs") / "jobs.jsonl"
    path.write_text(json.dumps({"payload": payload}) + "\n")

    ((_, job),) = jobs_of(path, envelopes=True)

    assert isinstance(job.payload, bytes)
    assert json.loads(job.payload.decode("utf-8", "surrogatepass")) == payload


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not there, or a folder: the option, the name and the reason."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"^--from-file='.*': .*expected a file that can be read$"):
        jobs_of(Path(name))


def test_a_file_that_stops_being_readable_is_one_line() -> None:
    """A disk that fails in the middle is told like a file that is not there."""

    class Failing(io.BytesIO):
        """Breaks at the second line."""

        def __next__(self) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().__next__()

    with pytest.raises(ConfigError, match=r"--from-file='jobs\.jsonl': Input/output error, expected"):
        JobFile("jobs.jsonl", Failing(b"1\n2\n"), envelopes=False, template=PLAIN).check()


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is kept in a temporary file: it is checked, then read."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n")))

    assert [job.payload for _, job in jobs_of(Path("-"))] == [b"1", b"2"]


def test_a_lane_is_named_by_its_id_or_by_any_text() -> None:
    """A branded id stays, any other text stands for the same lane everywhere."""
    assert (lane_of(None), lane_of("USR0KHTOWnGLuC")) == (None, "USR0KHTOWnGLuC")
    assert lane_of("tenant-7") == group_for("tenant-7")
