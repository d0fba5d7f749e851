"""SCAN in a cluster: over the owner of a slot where all keys like the pattern share one, else over every primary.

Source: SCAN of the cluster's specification (a node tells its own keys). The cursor is text of ours, `host:port cursor`;
it begins and ends with `0` as the server's does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from echomq_worker.address import Host
from echomq_worker.cluster_map import redirect
from echomq_worker.cluster_nodes import Node, Nodes
from echomq_worker.cluster_route import slot_of_pattern
from echomq_worker.errors import EchoMQError, InvalidArgument

_START = b"0"
_CURSOR = re.compile(rb"(.+):(\d{1,5}) (\d+)", re.DOTALL)


async def scan(nodes: Nodes, command: Sequence[Any]) -> list[Any]:
    """One step: the next cursor and a page of keys.

    A slot that has moved between two steps is scanned again from the start at its new owner. Raises Unavailable while
    it moves key by key, as no node has all of its keys then; InvalidArgument for a cursor that is none.
    """
    words = [word.encode() if isinstance(word, str) else word for word in command]
    at, cursor = _read(words[1])
    pattern = next((words[i + 1] for i in range(2, len(words) - 1) if words[i] == b"MATCH"), b"*")
    slot = slot_of_pattern(pattern)
    if slot is None:
        return await _of_all(nodes, at, cursor, words[2:])
    node = await nodes.of(slot)
    if at != node.address:
        cursor = _START
    # A command with any key of the slot: SCAN itself does not tell whether the node still owns it.
    probe = ("EXISTS", pattern[: pattern.index(b"}") + 1])
    there, page = await node.pipeline([probe, ("SCAN", cursor, *words[2:])])
    if isinstance(there, EchoMQError):
        told = redirect(there, node.address)
        if told is None or told.kind != "MOVED":
            raise there
        nodes.moved(told)
        return [_written(nodes.at(told.address), _START), []]
    if isinstance(page, EchoMQError):
        raise page
    return [_START if page[0] == _START else _written(node, page[0]), page[1]]


async def _of_all(nodes: Nodes, at: Host | None, cursor: bytes, words: Sequence[Any]) -> list[Any]:
    # A node that has gone since the last step was replaced by one that we know nothing of: go on with the next.
    left = [node for node in await nodes.primaries() if at is None or node.address >= at]
    if not left:
        return [_START, []]
    node = left[0]
    page = await node.call("SCAN", cursor if node.address == at else _START, *words)
    if page[0] != _START:
        return [_written(node, page[0]), page[1]]
    return [_written(left[1], _START) if len(left) > 1 else _START, page[1]]


def _read(cursor: Any) -> tuple[Host | None, bytes]:
    """The node that a cursor is of, None at the start, and the node's own cursor."""
    text = cursor if isinstance(cursor, bytes) else str(cursor).encode()
    if text == _START:
        return None, _START
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidArgument("command SCAN: the cursor is not one that a scan of a cluster has answered")
    return Host(match[1].decode("utf-8", "replace"), int(match[2])), match[3]


def _written(node: Node, cursor: bytes) -> bytes:
    host, port = node.address
    return f"{host}:{port} ".encode() + cursor
