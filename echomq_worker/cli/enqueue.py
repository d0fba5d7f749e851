"""`enqueue`: one job from the arguments or standard input, or many from a file.

Source: issue "A worker that runs jobs", Daemon and CLI. Payloads are sent as they are given, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.common import (
    AsJson,
    Queue,
    Url,
    at_ms,
    connected,
    note,
    print_json,
    read_payload,
    run_async,
    say,
    settings_for,
)
from echomq_worker.errors import ConfigError, EchoMQError, KindRefused

if TYPE_CHECKING:
    from echomq_worker.cli.jsonl import JobFile
    from echomq_worker.jobs import Jobs, New
    from echomq_worker.rows import Receipt
    from echomq_worker.settings import Settings

_BATCH = 1_600


Payload = Annotated[
    str | None,
    typer.Argument(metavar="PAYLOAD|-", help="The payload, sent as it is; - reads standard input.", show_default=False),
]
InMs = Annotated[int | None, typer.Option("--in-ms", metavar="MS", help="Due so long from now.", show_default=False)]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Due then: ms since 1970, or ISO 8601 with a zone.", show_default=False),
]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Its lane: a branded id, or any text.", show_default=False),
]
Id = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Its branded JOB id; made when not given.", show_default=False)
]
FromFile = Annotated[
    str | None,
    typer.Option(
        "--from-file",
        metavar="FILE",
        help="Many jobs: one JSON payload per line; - reads standard input.",
        show_default=False,
    ),
]
Envelopes = Annotated[
    bool, typer.Option("--envelopes", help="Lines are objects: payload, and as they apply id, group, in_ms, at.")
]


def enqueue(  # noqa: PLR0913 - one parameter per flag, that is how typer reads them
    queue: Queue,
    payload: Payload = None,
    *,
    url: Url = None,
    in_ms: InMs = None,
    at: At = None,
    group: Group = None,
    id: Id = None,
    from_file: FromFile = None,
    envelopes: Envelopes = False,
    as_json: AsJson = False,
) -> None:
    """Enqueue one job and print its id, or every line of a file and print how many."""
    if in_ms is not None and at is not None:
        raise ConfigError("--in-ms and --at: expected one of them")
    if envelopes and from_file is None:
        raise ConfigError("--envelopes: expected --from-file with it")
    settings = settings_for(url)
    settings.require_url()
    moment = None if at is None else at_ms(at)
    if from_file is not None:
        if payload is not None or id is not None:
            raise ConfigError("--from-file: expected neither a PAYLOAD nor --id with it")
        if envelopes and (in_ms, at, group) != (None, None, None):
            raise ConfigError("--envelopes: expected in_ms, at and group on the lines, not as options")
        _enqueue_file(settings, queue, from_file, envelopes=envelopes, options=(group, in_ms, moment), as_json=as_json)
        return
    if payload is None:
        raise ConfigError("no payload: expected PAYLOAD, - for standard input, or --from-file")
    _enqueue_one(settings, queue, _new(read_payload(payload), id, group, in_ms, moment), as_json=as_json)


def _new(payload: bytes, id: str | None, group: str | None, in_ms: int | None, moment: int | None) -> New:
    from echomq_worker.cli.jsonl import lane_of
    from echomq_worker.jobs import New

    return New(payload, id=id, group=lane_of(group), in_ms=in_ms, at_ms=moment)


def _enqueue_one(settings: Settings, queue: str, job: New, *, as_json: bool) -> None:
    async def send() -> Receipt:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            return (await Jobs(connector).enqueue_many(queue, [job]))[0]

    receipt = run_async(send())
    if receipt.refused:
        raise KindRefused(f"EMQKIND job id must be JOB-namespaced: {receipt.id}")
    if as_json:
        print_json({"id": receipt.id, "outcome": "duplicate" if receipt.duplicate else "admitted"})
        return
    say(receipt.id)
    if receipt.duplicate:
        note("duplicate: a job of that id is there already, nothing was enqueued")


def _enqueue_file(
    settings: Settings,
    queue: str,
    path: str,
    *,
    envelopes: bool,
    options: tuple[str | None, int | None, int | None],
    as_json: bool,
) -> None:
    from echomq_worker.cli.jsonl import open_jobs
    from echomq_worker.keyspace import check_queue

    check_queue(queue)
    group, in_ms, moment = options
    with open_jobs(path, envelopes=envelopes, template=_new(b"", None, group, in_ms, moment)) as jobs:
        jobs.check()
        admitted, duplicates = run_async(_send_all(settings, queue, jobs))
    if as_json:
        print_json({"admitted": admitted, "duplicates": duplicates})
    else:
        say(f"{admitted} enqueued" + (f", {duplicates} were there already" if duplicates else ""))


async def _send_all(settings: Settings, queue: str, jobs: JobFile) -> tuple[int, int]:
    """Send every job of a checked file, several batches at a time; how many were admitted, how many duplicates."""
    from echomq_worker.jobs import Jobs
    from echomq_worker.pool import connect_pool

    admitted = duplicates = 0
    async with connect_pool(
        settings.require_url(),
        size=settings.pool_size,
        wire_version=settings.wire_version,
        connect_timeout_ms=settings.connect_timeout_ms,
        command_timeout_ms=settings.command_timeout_ms,
    ) as pool:
        verbs = Jobs(pool)
        lines = jobs.read()
        done = 0
        while wave := await asyncio.to_thread(_take, lines, _BATCH * settings.pool_size):
            try:
                receipts = await _send_wave(verbs, queue, [job for _, job in wave])
            except EchoMQError as error:
                sent = f"{admitted} enqueued before line {wave[0][0]} of {jobs.name}, of the next {len(wave)} unknown"
                error.args = (f"{error}; {sent}",)
                raise
            done += len(wave)
            admitted += sum(receipt.admitted for receipt in receipts)
            duplicates += sum(receipt.duplicate for receipt in receipts)
            jobs.advance(done)
    return admitted, duplicates


def _take(lines: Iterator[tuple[int, New]], count: int) -> list[tuple[int, New]]:
    return list(islice(lines, count))


async def _send_wave(verbs: Jobs, queue: str, wave: Sequence[New]) -> list[Receipt]:
    answers = await asyncio.gather(*(verbs.enqueue_many(queue, batch) for batch in _batches(wave)))
    return [receipt for batch in answers for receipt in batch]


def _batches(items: Sequence[New]) -> Iterator[Sequence[New]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
