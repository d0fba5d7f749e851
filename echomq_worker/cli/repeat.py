"""`repeat add`, `repeat cron`, `repeat list`, `repeat cancel`: registrations that a worker's Pump turns into jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.common import (
    AsJson,
    Queue,
    Url,
    as_text,
    connected,
    moment,
    note,
    prepared,
    print_json,
    print_lines,
    print_table,
    read_payload,
    run_async,
    say,
    settings_for,
)
from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    from echomq_worker.repeat import Registration, RepeatRecord

Name = Annotated[str, typer.Argument(metavar="NAME", help="The registration's name, unique in its queue.")]
Template = Annotated[
    str, typer.Argument(metavar="PAYLOAD|-", help="The payload of each occurrence; - reads standard input.")
]
Update = Annotated[bool, typer.Option("--update", help="Replace what differs, where the name exists.")]


def repeat_app() -> typer.Typer:
    """The commands of `repeat`."""
    app = typer.Typer(
        help="Jobs that recur.", epilog="Example: echomq-worker repeat list reports", no_args_is_help=False
    )
    app.callback()(lambda: None)
    app.command("add", epilog="Example: echomq-worker repeat add reports daily 86400000 '{}'")(add)
    app.command(
        "cron", epilog="Example: echomq-worker repeat cron reports nightly '0 3 * * *' '{}' --tz Europe/Berlin"
    )(add_cron)
    app.command("list", epilog="Example: echomq-worker repeat list reports")(list_repeats)
    app.command("cancel", epilog="Example: echomq-worker repeat cancel reports daily")(cancel)
    return app


def add(
    queue: Queue,
    name: Name,
    every_ms: Annotated[int, typer.Argument(metavar="EVERY_MS", help="The period in milliseconds.")],
    payload: Template,
    *,
    first_in_ms: Annotated[
        int, typer.Option("--first-in-ms", metavar="MS", help="The first occurrence, so long from now.")
    ] = 0,
    fixed_rate: Annotated[
        bool, typer.Option("--fixed-rate", help="Keep the grid: due + period, not fired + period.")
    ] = False,
    update: Update = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a recurring job. A name that exists is left alone (and what differs is told), unless --update."""
    settings = settings_for(url)
    template = read_payload(payload)

    async def register() -> Registration:
        from echomq_worker.repeat import Repeat

        async with connected(settings) as connector:
            return await Repeat(connector).register(
                queue, name, every_ms, template, first_in_ms=first_in_ms, fixed_rate=fixed_rate, update=update
            )

    _tell(name, run_async(register()), as_json=as_json)


def add_cron(
    queue: Queue,
    name: Name,
    expression: Annotated[
        str, typer.Argument(metavar="CRON", help="Minute, hour, day of month, month, day of week, quoted.")
    ],
    payload: Template,
    *,
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="The time zone that CRON is read in.")] = "UTC",
    update: Update = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a job that recurs by a calendar. A name that exists is left alone (what differs is told), unless
    --update.
    """
    settings = prepared(url, queue)
    from echomq_worker.cron import Cron

    # Before the payload is read and the server asked.
    Cron.of(expression, tz).after(0)
    template = read_payload(payload)

    async def register() -> Registration:
        from echomq_worker.repeat import Repeat

        async with connected(settings) as connector:
            return await Repeat(connector).register(
                queue, name, cron=expression, tz=tz, template=template, update=update
            )

    _tell(name, run_async(register()), as_json=as_json)


def _tell(name: str, answer: Registration, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "outcome": str(answer), "difference": list(answer.difference)})
        return
    say(str(answer))
    if answer.difference:
        note(f"{name} exists with another {', '.join(answer.difference)}: left as it is, --update replaces it")


def list_repeats(queue: Queue, *, url: Url = None, as_json: AsJson = False) -> None:
    """List the registrations of a queue. The earliest next run comes first."""
    settings = settings_for(url)

    async def ask() -> list[RepeatRecord]:
        from echomq_worker.repeat import Repeat

        async with connected(settings) as connector:
            return await Repeat(connector).list(queue)

    records = run_async(ask())
    if as_json:
        print_lines(
            {
                "name": record.name,
                "every_ms": record.every_ms or None,
                "fixed_rate": record.fixed_rate,
                "cron": record.cron,
                "tz": record.tz,
                "next_at_ms": record.next_at_ms,
                "template": as_text(record.template),
            }
            for record in records
        )
        return
    rows = [(record.name, record.every_ms or None, *_rhythm(record), moment(record.next_at_ms)) for record in records]
    print_table(("name", "every ms", "rate", "zone", "next run"), rows)


def cancel(queue: Queue, name: Name, *, url: Url = None) -> None:
    """Remove a registration. Its jobs that are enqueued already stay; one that is not there: exit code 1."""
    settings = settings_for(url)
    if not name:
        raise ConfigError("NAME='': expected the name of a registration")

    async def remove() -> bool:
        from echomq_worker.repeat import Repeat

        async with connected(settings) as connector:
            return await Repeat(connector).cancel(queue, name)

    if not run_async(remove()):
        note(f"{name}: no such registration in {queue} (repeat list shows those that there are)")
        raise typer.Exit(Exit.FAILED)
    say("cancelled")


def _rhythm(record: RepeatRecord) -> tuple[str, str | None]:
    if record.cron is not None:
        return record.cron, record.tz
    return "fixed" if record.fixed_rate else "after", None
