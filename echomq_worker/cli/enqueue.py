"""`enqueue`: one job from the arguments or standard input, or many from a file.

Source: issue "A worker that runs jobs", Daemon and CLI. Payloads are sent as they are given, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.bar import Bar, progress_bar
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
    from echomq_worker.admission import New
    from echomq_worker.cli.jsonl import JobFile
    from echomq_worker.jobs import Jobs
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
    bool, typer.Option("--envelopes", help="Lines are objects: payload, and what the options say for one job.")
]
Dedup = Annotated[
    str | None,
    typer.Option(
        "--dedup",
        metavar="KEY",
        help="Not admitted while another job with KEY is neither done nor dead.",
        show_default=False,
    ),
]
DedupTtl = Annotated[
    int | None,
    typer.Option("--dedup-ttl-ms", metavar="MS", help="The key stands no longer than that.", show_default=False),
]
ExpiresIn = Annotated[
    int | None,
    typer.Option("--expires-in-ms", metavar="MS", help="Not started after so long: it is dead.", show_default=False),
]
ExpiresAt = Annotated[
    str | None,
    typer.Option("--expires-at", metavar="TIME", help="Not started after then; as --at.", show_default=False),
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
    dedup: Dedup = None,
    dedup_ttl_ms: DedupTtl = None,
    expires_in_ms: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue one job, or every line of a file. Prints the job's id, or how many there were."""
    from echomq_worker.admission import New, terms_of
    from echomq_worker.cli.jsonl import lane_of

    _check_together({"--in-ms": in_ms, "--at": at}, {"--expires-in-ms": expires_in_ms, "--expires-at": expires_at})
    if envelopes and from_file is None:
        raise ConfigError("--envelopes: expected --from-file with it")
    settings = settings_for(url)
    settings.require_url()
    due = None if at is None else at_ms(at)
    until = None if expires_at is None else at_ms(expires_at, "--expires-at")
    job = New(b"", id, lane_of(group), in_ms, due, dedup, dedup_ttl_ms, expires_in_ms, until)
    terms_of(job)
    if from_file is not None:
        _check_file_options(job, payload, envelopes=envelopes)
        _enqueue_file(settings, queue, from_file, envelopes=envelopes, template=job, as_json=as_json)
        return
    if payload is None:
        raise ConfigError("no payload: expected PAYLOAD, - for standard input, or --from-file")
    _enqueue_one(settings, queue, replace(job, payload=read_payload(payload)), as_json=as_json)


def _check_together(*pairs: dict[str, object]) -> None:
    for pair in pairs:
        if all(value is not None for value in pair.values()):
            raise ConfigError(f"{' and '.join(pair)}: expected one of them")


def _check_file_options(template: New, payload: str | None, *, envelopes: bool) -> None:
    from echomq_worker.admission import New

    if payload is not None or template.id is not None:
        raise ConfigError("--from-file: expected neither a PAYLOAD nor --id with it")
    if envelopes and template != New(b""):
        raise ConfigError("--envelopes: expected group, in_ms, at and the like on the lines, not as options")
    if template.dedup is not None:
        raise ConfigError("--dedup: of a file one line would be admitted, expected dedup on the lines with --envelopes")


def _enqueue_one(settings: Settings, queue: str, job: New, *, as_json: bool) -> None:
    async def send() -> Receipt:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            return (await Jobs(connector).enqueue_many(queue, [job]))[0]

    receipt = run_async(send())
    if receipt.refused:
        raise KindRefused(f"EMQKIND job id must be JOB-namespaced: {receipt.id}")
    outcome = "deduplicated" if receipt.deduplicated else "duplicate" if receipt.duplicate else "admitted"
    if as_json:
        print_json({"id": receipt.id, "outcome": outcome})
        return
    say(receipt.id)
    if receipt.duplicate:
        note("duplicate: a job of that id is there already, nothing was enqueued")
    if receipt.deduplicated:
        note("deduplicated: that job has the key, nothing was enqueued")


def _enqueue_file(settings: Settings, queue: str, path: str, *, envelopes: bool, template: New, as_json: bool) -> None:
    from echomq_worker.cli.jsonl import open_jobs
    from echomq_worker.keyspace import check_queue

    check_queue(queue)
    with open_jobs(path, envelopes=envelopes, template=template) as jobs:
        jobs.check()
        with progress_bar(f"enqueue {jobs.name}") as bar:
            tally = run_async(_send_all(settings, queue, jobs, bar))
    if as_json:
        print_json({name: tally[name] for name in ("admitted", "duplicates", "deduplicated")})
        return
    others = {"duplicates": "were there already", "deduplicated": "have a key that another job has"}
    told = [f"{tally[name]} {words}" for name, words in others.items() if tally[name]]
    say(", ".join([f"{tally['admitted']} enqueued", *told]))


async def _send_all(settings: Settings, queue: str, jobs: JobFile, bar: Bar) -> Counter[str]:
    """Send every job of a checked file, several batches at a time; how many of them came to what."""
    from echomq_worker.jobs import Jobs
    from echomq_worker.pool import connect_pool

    tally, done = Counter[str](), 0
    async with connect_pool(
        settings.require_url(),
        size=settings.pool_size,
        wire_version=settings.wire_version,
        wire=settings.wire,
        connect_timeout_ms=settings.connect_timeout_ms,
        command_timeout_ms=settings.command_timeout_ms,
    ) as pool:
        verbs = Jobs(pool)
        lines = jobs.read()
        while wave := await asyncio.to_thread(_take, lines, _BATCH * settings.pool_size):
            try:
                receipts = await _send_wave(verbs, queue, [job for _, job in wave])
            except EchoMQError as error:
                sent = f"{tally['admitted']} enqueued before line {wave[0][0]} of {jobs.name}"
                error.args = (f"{error}; {sent}, of the next {len(wave)} unknown",)
                raise
            done += len(wave)
            tally["admitted"] += sum(receipt.admitted for receipt in receipts)
            tally["duplicates"] += sum(receipt.duplicate for receipt in receipts)
            tally["deduplicated"] += sum(receipt.deduplicated for receipt in receipts)
            bar(done, jobs.total)
    return tally


def _take(lines: Iterator[tuple[int, New]], count: int) -> list[tuple[int, New]]:
    return list(islice(lines, count))


async def _send_wave(verbs: Jobs, queue: str, wave: Sequence[New]) -> list[Receipt]:
    answers = await asyncio.gather(*(verbs.enqueue_many(queue, batch) for batch in _batches(wave)))
    return [receipt for batch in answers for receipt in batch]


def _batches(items: Sequence[New]) -> Iterator[Sequence[New]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
