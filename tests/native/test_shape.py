"""What every command has in common: its shape is checked before a key is read, its effects travel as effects.

Source: protocol section 7; issue "The native twins" (keys declared, flags, replication, arity).
"""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
import redis

from echomq_worker.twins import ALONE, TWINS
from tests.conformance.test_servers import binary_of
from tests.support.native import load_options
from tests.support.plain import FAR_MS, GROUP, State, job, row
from tests.support.twin import BASE, Twins
from tests.support.valkey import OwnServer, ValkeyServer

ID = job(1)
COMMANDS = sorted({*TWINS.values(), *ALONE})
ADMISSIONS = {
    "EMQ.SCHEDULE",
    "EMQ.ENQUEUE",
    "EMQ.ENQUEUE.MANY",
    "EMQ.ADMIT.MANY",
    "EMQ.ADMIT.TRACED",
    "EMQ.LANE.ENQUEUE",
}
READERS = {"EMQ.LOOK"}
# One job in hand, and one whose lease ran out.
BUSY: State = {
    f"job:{ID}": row("active", 1, held="1:ab"),
    f"job:{job(2)}": row("active", 1, group=GROUP, held="1:ab"),
    "active": {ID: FAR_MS, job(2): 1},
    "gactive": {GROUP: "1"},
}


def client_of(server: ValkeyServer, **options: Any) -> Any:
    """A plain client on the twins' database; untyped, as redis-py's commands of any name are."""
    return redis.Redis(port=server.port, db=1, **options)


def told(client: Any, *words: Any) -> Any:
    """A reply as it comes: redis-py would read some of them into shapes of its own."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        pool.release(connection)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_server_knows_the_command(command: str, native: ValkeyServer) -> None:
    """It writes, or only reads; it is refused at maxmemory where it admits; its keys are those behind their number."""
    info = told(native.admin, "COMMAND", "INFO", command)[0]
    flags = {flag.decode() for flag in info[2]}
    assert ("readonly" if command in READERS else "write") in flags
    if command in ADMISSIONS:
        assert "denyoom" in flags
    rest = ["x"] * (abs(info[1]) - 4)
    assert told(native.admin, "COMMAND", "GETKEYS", command, 2, "one", "two", *rest) == [b"one", b"two"]


@pytest.mark.parametrize("command", COMMANDS)
def test_arity_is_the_servers(command: str, twins: Twins) -> None:
    """Too few arguments: the server's own text."""
    assert twins.raw({}, command).reply == f"!wrong number of arguments for '{command}' command"


def test_the_class_of_an_error(native: ValkeyServer) -> None:
    """As the wire has it: `ERR`, the command, what was expected."""
    words = ["EMQ.SCHEDULE", "2", f"{BASE}job:{ID}", f"{BASE}schedule", ID, "x", "on", "5"]
    with socket.create_connection(("127.0.0.1", native.port)) as wire:
        wire.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(one)}\r\n{one}\r\n".encode() for one in words))
        assert wire.recv(200) == b"-ERR EMQ.SCHEDULE mode must be in or at\r\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("EMQ.REAP", 1, f"{BASE}active", BASE, "x"), "wrong number of keys"),
        (("EMQ.REAP", "two", f"{BASE}active", f"{BASE}pending", BASE), "wrong number of keys"),
        (("EMQ.REAP", -2, f"{BASE}active", f"{BASE}pending", BASE), "wrong number of keys"),
        (
            ("EMQ.REAP", 2, f"{BASE}active", "emq:{other}:pending", BASE),
            "keys must be those of one queue, named as in the protocol",
        ),
        (
            ("EMQ.REAP", 2, "active", "pending", ""),
            "keys must be those of one queue, named as in the protocol",
        ),
        (
            ("EMQ.REAP", 2, "emq:{a}b}:active", "emq:{a}b}:pending", "emq:{a}b}:"),
            "keys must be those of one queue, named as in the protocol",
        ),
        (("EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", "emq:{other}:"), "base must be the emq:{q}: of its keys"),
    ],
)
def test_keys_of_one_queue(words: tuple[Any, ...], text: str, twins: Twins) -> None:
    """Every key must have its name and its queue, so that what is derived from them is theirs too."""
    outcome = twins.raw(BUSY, *words)
    assert outcome.reply.endswith(text), outcome.reply
    assert outcome.state == twins.raw(BUSY, "PING").state


def test_the_base_of_another_queue_is_out_of_reach(twins: Twins, native: ValkeyServer) -> None:
    """Who may only use queue q cannot reach another one by naming it as the base."""
    native.admin.acl_setuser("only-q", enabled=True, nopass=True, keys=[f"{BASE}*"], commands=["+@all"])
    twins.raw({}, "PING")
    user = client_of(native, username="only-q", password="")
    other = ("emq:{other}:active", "emq:{other}:pending")
    with pytest.raises(redis.exceptions.NoPermissionError):
        user.execute_command("EMQ.REAP", 2, *other, "emq:{other}:")
    with pytest.raises(redis.ResponseError, match="base must be"):
        user.execute_command("EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", "emq:{other}:")
    assert user.execute_command("EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", BASE) == 0
    user.close()
    native.admin.acl_deluser("only-q")


def test_effects_are_what_is_kept(own_server: OwnServer) -> None:
    """The append-only file has the writes, wrapped in one transaction, with times as numbers; never the command."""
    server = own_server(args=load_options(), append_only=True)
    twins = Twins(server)
    before = twins.raw(BUSY, "EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", BASE)
    assert before.reply == 1
    delay = ("EMQ.DELAY", 3, f"{BASE}job:{ID}", f"{BASE}active", f"{BASE}schedule", ID, "1:ab", "in", 60_000)
    parked = twins.raw(BUSY, *delay)
    assert parked.reply == 1
    twins.close()
    kept = b"".join(path.read_bytes() for path in server.directory.rglob("*.incr.aof")).decode()
    assert "EMQ." not in kept
    assert kept.count("MULTI") == kept.count("EXEC") >= 2
    server.restart()
    twins = Twins(server)
    assert twins.now().state == parked.state
    twins.close()


def test_parked_consumers_hear_of_it(native: ValkeyServer, twins: Twins) -> None:
    """A BLPOP on the readiness list is served by the token that a command pushes."""
    twins.raw(BUSY, "PING")
    client = client_of(native)
    waiting = client.connection_pool.get_connection()
    waiting.send_command("BLPOP", f"{BASE}ready", 10)
    requeue = ("EMQ.REQUEUE", 3, f"{BASE}job:{ID}", f"{BASE}active", f"{BASE}pending", ID, "1")
    while not re.search(rb"cmd=blpop", told(client, "CLIENT", "LIST", "TYPE", "normal")):
        pass
    assert client.execute_command(*requeue) == 1
    assert waiting.read_response() == [f"{BASE}ready".encode(), b"1"]
    waiting.disconnect()
    client.close()


def test_at_maxmemory(own_server: OwnServer) -> None:
    """A full server takes no new job; one in hand is ended, kept and given back as by the scripts."""
    server = own_server(args=load_options())
    twins = Twins(server)
    twins.raw(BUSY, "PING")
    client = client_of(server)
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.execute_command("EMQ.SCHEDULE", 2, f"{BASE}job:{job(9)}", f"{BASE}schedule", job(9), "x", "in", 5)
    row_key, active = f"{BASE}job:{ID}", f"{BASE}active"
    assert client.execute_command("EMQ.EXTEND", 2, active, row_key, ID, "1", 60_000) == 1
    keys = (active, f"{BASE}schedule", f"{BASE}dead", row_key)
    assert client.execute_command("EMQ.RETRY", 4, *keys, ID, "1", 5, 3, "boom", BASE) == b"scheduled"
    client.close()
    twins.close()


def test_it_loads_into_an_older_valkey(own_server: OwnServer) -> None:
    """8.1 has what is used of the module API too."""
    binary = binary_of("valkey 8")
    if binary is None:
        pytest.skip("there is no Valkey 8.1 here")
    twins = Twins(own_server(binary=binary, args=load_options()))
    reaped = twins.raw(BUSY, "EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", BASE)
    assert (reaped.reply, reaped.state["ring"]) == (1, [GROUP])
    twins.close()


def test_unload_and_load_again(own_server: OwnServer) -> None:
    """The server survives it, and the commands are there again."""
    server = own_server(args=load_options())
    path, admin = load_options()[1], client_of(server)
    for _ in range(3):
        assert admin.execute_command("MODULE", "UNLOAD", "emq")
        with pytest.raises(redis.ResponseError, match="unknown command"):
            admin.execute_command("EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", BASE)
        assert admin.execute_command("MODULE", "LOAD", path)
        assert admin.execute_command("EMQ.REAP", 2, f"{BASE}active", f"{BASE}pending", BASE) == 0
    admin.close()
