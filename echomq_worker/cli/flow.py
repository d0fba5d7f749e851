"""`flow add` and `flow show`: parents that wait for their children.

Source: issue "Every control" (flows), protocol section 6. A flow is JSON: an object, or a list of them, each with
`queue`, `payload` (any JSON, sent compact) and, as they apply, `children`, `id`, `group`, `policy`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import (
    AsJson,
    JobId,
    Queue,
    Url,
    connected,
    note,
    prepared,
    print_json,
    print_table,
    read_payload,
    run_async,
    say,
    settings_for,
)
from echomq_worker.errors import ConfigError, InvalidArgument, InvalidId, InvalidQueueName

if TYPE_CHECKING:
    from echomq_worker.flows import Added, Branch, Node

_KEYS = ("queue", "payload", "children", "id", "group", "policy")
_SAID_CHARACTERS = 60


def flow_app() -> typer.Typer:
    """The commands of `flow`."""
    app = typer.Typer(
        help="Flows: parents that wait for their children.",
        epilog="Example: echomq-worker flow add report.json",
        no_args_is_help=False,
    )
    app.callback()(lambda: None)
    app.command("add", epilog="Example: echomq-worker flow add report.json")(add)
    app.command("show", epilog="Example: echomq-worker flow show reports ID --json")(show)
    return app


def add(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON: a flow or a list of them; - is standard input.")],
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Add flows and print the id of each root, one a line. With an id for every job a flow may be added again."""
    settings = settings_for(url)
    settings.require_url()
    roots = _roots(file)

    async def send() -> list[Added]:
        from echomq_worker.flows import Flows

        async with connected(settings) as connector:
            with progress_bar("flow add") as bar:
                return await Flows(connector).add_bulk(roots, progress=bar)

    added = run_async(send())
    if as_json:
        for tree in added:
            print_json(asdict(tree))
        return
    for tree in added:
        say(tree.id)
    if not any(_admitted(tree) for tree in added):
        note("nothing was added: all of it is there already, or has reported")


def show(
    queue: Queue,
    id: JobId,
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many children of each.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a job and everything below it. Who is out and where it stands, who is done, dead, or dead but ignored. A job
    that is gone: exit code 1.
    """
    settings = prepared(url, queue)

    async def ask() -> Branch | None:
        from echomq_worker.flows import Flows

        async with connected(settings) as connector:
            with progress_bar(f"flow {id}", counted=False):
                return await Flows(connector).tree(queue, id, limit=limit)

    tree = run_async(ask())
    if tree is None:
        note(f"{id}: no such job in {queue}; a completed job has no row (job list shows those that there are)")
        raise typer.Exit(Exit.FAILED)
    if as_json:
        print_json(asdict(tree))
        return
    print_table(("job", "queue", "state", "children out", "result or error"), _rows(tree, 0))


def _rows(branch: Branch, level: int) -> Iterator[tuple[object, ...]]:
    said = branch.said
    if said is not None and len(said) > _SAID_CHARACTERS:
        said = f"{said[:_SAID_CHARACTERS]}..."
    yield f"{'  ' * level}{branch.id}", branch.queue, branch.state, branch.out, said
    for child in branch.children:
        yield from _rows(child, level + 1)
    if branch.hidden:
        yield f"{'  ' * level}  and {branch.hidden} more", None, None, None, None


def _admitted(added: Added) -> bool:
    return added.admitted or any(_admitted(child) for child in added.children)


def _roots(file: str) -> list[Node]:
    """The flows of a file. Raises ConfigError, one line that names the place."""
    from echomq_worker.flows import check

    name = "standard input" if file == "-" else file
    try:
        value = json.loads(_text(file), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: it is not UTF-8, expected JSON") from None
    except RecursionError:
        raise ConfigError(f"{name}: it is nested too deep, expected JSON") from None
    except ValueError as error:
        raise ConfigError(f"{name}: {error}, expected JSON") from None
    if isinstance(value, list):
        roots = [_node(one, name, f"[{number}]", 1) for number, one in enumerate(value)]
    else:
        roots = [_node(value, name, "", 1)]
    check(roots)
    return roots


def _text(file: str) -> bytes:
    if file == "-":
        return read_payload("-")
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"FILE={file!r}: {why}, expected a file that can be read") from None


def _node(value: Any, name: str, where: str, level: int) -> Node:
    from echomq_worker.cli.jsonl import lane_of
    from echomq_worker.flows import LEVELS, Node
    from echomq_worker.identity import check_id
    from echomq_worker.keyspace import check_queue

    def refuse(why: object) -> NoReturn:
        raise ConfigError(f"{name}: {f'{where}: ' if where else ''}{why}; nothing was added") from None

    if not isinstance(value, dict) or not {"queue", "payload"} <= value.keys() <= set(_KEYS):
        refuse(f"expected an object with queue, payload and, as they apply, {', '.join(_KEYS[2:])}")
    id, group, policy, children = (value.get(key) for key in ("id", "group", "policy", "children"))
    if level > LEVELS:
        refuse(f"expected at most {LEVELS} levels")
    if not (children is None or isinstance(children, list)):
        refuse("children: expected a list")
    if level == 1 and not children:
        refuse("children: expected one or more")
    if not (group is None or (isinstance(group, str) and group)):
        refuse("group: expected a text that is not empty")
    if not (policy is None or (isinstance(policy, str) and policy in {"fp", "id"})):
        refuse("policy: expected 'fp' or 'id'")
    try:
        queue, id = check_queue(value["queue"]), None if id is None else check_id(id)
        payload = json.dumps(value["payload"], ensure_ascii=False, separators=(",", ":")).encode()
    except (InvalidQueueName, InvalidId, InvalidArgument) as error:
        refuse(error)
    except UnicodeEncodeError:
        refuse("payload: expected text that UTF-8 can carry")
    nodes = [
        _node(child, name, f"{where}{'.' if where else ''}children[{number}]", level + 1)
        for number, child in enumerate(children or ())
    ]
    chosen: Any = policy or "fp"
    return Node(queue, payload, nodes, id=id, group=lane_of(group), policy=chosen)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
