"""What a connector sends on wire 4, 6 and auto, on a server with the module and without: found at connect and again at
every reconnect.

Source: issue "The native twins: a Valkey module, and wire 6", protocol section 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.admin import Admin
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConfigError, LaneNotServed, NoTwin, ServerError, StateRefused, WireError
from echomq_worker.jobs import Jobs, New
from echomq_worker.keyspace import Keys
from echomq_worker.pool import connect_pool
from echomq_worker.script import evaluate_many, scripts
from echomq_worker.twins import TWINS, VERSION, _told
from tests.support.native import load, native, own_native
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer, raw_client

__all__ = ["native", "own_native"]

GROUP = "GRP00000000001"


@pytest.fixture
async def seen(native: ValkeyServer) -> AsyncIterator[Proxy]:
    """Stands before it and sees what is sent."""
    async with Proxy(native.port) as proxy:
        yield proxy


@pytest.fixture
async def there(native: ValkeyServer) -> AsyncIterator[Redis]:
    """A plain client on it."""
    async with raw_client(native.url) as client:
        yield client


def unload(server: ValkeyServer) -> None:
    """MODULE UNLOAD."""
    admin: Any = server.admin
    admin.execute_command("MODULE", "UNLOAD", "emq")


def sent(proxy: Proxy) -> list[list[bytes]]:
    """Every command that passed, as words."""
    return [command.split(b"\r\n")[2::2] for command in proxy.seen]


def verbs(proxy: Proxy) -> list[bytes]:
    """The names of the scripts and commands that passed, in order."""
    names = {script.sha.encode(): name.encode() for name, script in scripts().items()}
    words = [
        command for command in sent(proxy) if command[0] in {b"EVALSHA", b"EVAL"} or command[0].startswith(b"EMQ.")
    ]
    return [one[0] if one[0] != b"EVALSHA" else names[one[1]] for one in words]


async def put_due_in_lane(connector: Connector) -> str:
    """A due job of a lane; its id."""
    (receipt,) = await Jobs(connector).enqueue_many("q", [New(b"x", group=GROUP, at_ms=1)])
    return receipt.id


async def drop(connector: Connector, native: ValkeyServer) -> None:
    """The connection is cut, and the next call makes a new one."""
    admin: Any = native.admin
    before = connector.generation
    admin.client_kill_filter(_type="normal", skipme=True)
    while connector.generation == before:
        with suppress(WireError):
            await connector.call("PING")


async def test_wire_4_is_what_it_was(seen: Proxy) -> None:
    """The default: the server is asked for nothing more at connect, and every verb is a script, whatever it has."""
    async with connect(seen.url) as connector:
        assert (await Jobs(connector).enqueue("q", b"x")).admitted
        assert str(connector.spoken) == "4 (scripts)"

    assert [command[0] for command in sent(seen)] == [b"HELLO", b"CLIENT", b"GET", b"SET", b"GET", b"EVALSHA", b"EVAL"]


async def test_wire_6_sends_the_line_of_the_script(seen: Proxy, there: Redis) -> None:
    """The same keys and arguments in the same order, the hash replaced by the name; the reply is the script's."""
    async with connect(seen.url, wire=6) as connector:
        jobs = Jobs(connector)
        seen.seen.clear()
        receipt = await jobs.enqueue_in("q", b"\x00x", 60_000)
        assert receipt.admitted
        assert not (await jobs.enqueue_in("q", b"x", 1, id=receipt.id)).admitted
        assert str(connector.spoken) == f"6 ({len(connector.spoken.commands)} commands)"

    keys = Keys("q")
    row, schedule, id = keys.job(receipt.id).encode(), keys.schedule.encode(), receipt.id.encode()
    assert sent(seen)[0] == [b"EMQ.SCHEDULE", b"2", row, schedule, id, b"\x00x", b"in", b"60000"]
    assert await there.hget(keys.job(receipt.id), "payload") == b"\x00x"


async def test_wire_6_refuses_what_is_a_script_alone(seen: Proxy) -> None:
    """The error names the verb and says what speaks it; nothing is sent, nor what stands beside it in a batch."""
    keys = Keys("q")
    async with connect(seen.url, wire="6") as connector:
        seen.seen.clear()
        with pytest.raises(
            NoTwin, match=r"^wire 6: no command for queue_pause, a script alone: expected ECHOMQ_WIRE=auto"
        ):
            await Admin(connector).pause("q")
        promote: Any = ("promote", (keys.schedule, keys.pending), (keys.base, 1))
        with pytest.raises(NoTwin, match="queue_resume"):
            await evaluate_many(connector, [promote, ("queue_resume", (keys.meta,), ())])

    assert seen.seen == []


async def test_auto_takes_commands_where_they_are_and_scripts_for_the_rest(seen: Proxy) -> None:
    """A verb without a command is a script as ever, and what it says is said: no call is sent twice."""
    async with connect(seen.url, wire="auto") as connector:
        await Jobs(connector).enqueue("q", b"x")
        await Admin(connector).pause("q")
        await Admin(connector).resume("q")
        assert str(connector.spoken) == f"auto ({len(connector.spoken.commands)} commands, scripts for the rest)"

    assert [verb for verb in verbs(seen) if verb != b"EVAL"] == [b"EMQ.ENQUEUE", b"queue_pause", b"queue_resume"]


async def test_auto_sends_the_script_where_the_command_declines_a_lane(seen: Proxy, there: Redis) -> None:
    """A grouped job that is due: the command has written nothing, the script releases it; the others of the batch
    are not sent again, and the replies are in their places.
    """
    keys = Keys("q")
    async with connect(seen.url, wire="auto") as connector:
        id = await put_due_in_lane(connector)
        promote: Any = ("promote", (keys.schedule, keys.pending), (keys.base, 10))
        reap: Any = ("reap", (keys.active, keys.pending), (keys.base,))
        seen.seen.clear()
        assert await evaluate_many(connector, [reap, promote, reap]) == [0, 1, 0]

    assert [one for one in verbs(seen) if one != b"EVAL"] == [b"EMQ.REAP", b"EMQ.PROMOTE", b"EMQ.REAP", b"promote"]
    assert await there.zrange(keys.lane(GROUP), 0, -1) == [id.encode()]


async def test_auto_sends_the_script_where_the_command_wants_less(seen: Proxy, there: Redis) -> None:
    """A run-at before 1970, which the script takes: on auto a caller sees no difference."""
    async with connect(seen.url, wire="auto") as connector:
        assert (await Jobs(connector).enqueue_at("q", b"x", -5)).admitted

    assert verbs(seen)[:2] == [b"EMQ.SCHEDULE", b"schedule"]
    assert await there.zcard("emq:{q}:schedule") == 1


async def test_wire_6_says_what_the_command_says(native: ValkeyServer) -> None:
    """Its own texts; of a lane also what would serve it."""
    async with connect(native.url, wire="6") as connector:
        with pytest.raises(ServerError, match=r"^ERR EMQ\.SCHEDULE due must be a non-negative integer$"):
            await Jobs(connector).enqueue_at("q", b"x", -5)
        await put_due_in_lane(connector)
        with pytest.raises(LaneNotServed, match=r"^EMQSTATE promote lane not native \(.*ECHOMQ_WIRE=auto\)$") as caught:
            await Jobs(connector).promote("q")

    assert isinstance(caught.value, StateRefused)


async def test_a_module_that_is_unloaded_leaves_auto_with_scripts(seen: Proxy, native: ValkeyServer) -> None:
    """The verb in hand is carried out as a script, and nobody asks for that command again; loaded anew it is found
    at the next connection.
    """
    async with connect(seen.url, wire="auto") as connector:
        jobs = Jobs(connector)
        await jobs.enqueue("q", b"x")
        unload(native)
        seen.seen.clear()
        assert [(await jobs.enqueue("q", b"x")).admitted for _ in range(3)] == [True] * 3
        assert [one for one in verbs(seen) if one != b"EVAL"] == [b"EMQ.ENQUEUE", *[b"enqueue"] * 3]
        await drop(connector, native)
        assert str(connector.spoken) == "auto (scripts: the server has no module emq)"
        load(native)
        await jobs.enqueue("q", b"x")
        assert verbs(seen)[-1] == b"enqueue"
        await drop(connector, native)
        await jobs.enqueue("q", b"x")
        assert verbs(seen)[-1] == b"EMQ.ENQUEUE"


async def test_a_module_that_is_unloaded_leaves_wire_6_with_an_error(native: ValkeyServer) -> None:
    """It names the command and what to do, at once and behind a reconnect; with the module back it goes on."""
    async with connect(native.url, wire="6") as connector:
        unload(native)
        for _ in range(2):
            with pytest.raises(
                ServerError, match=r"wire 6: the server does not have EMQ\.ENQUEUE, expected the module emq"
            ):
                await Jobs(connector).enqueue("q", b"x")
            await drop(connector, native)
        assert str(connector.spoken) == "6 (no command: the server has no module emq)"
        load(native)
        assert (await Jobs(connector).enqueue("q", b"x")).admitted


@pytest.fixture
def user(native: ValkeyServer) -> Iterator[str]:
    """The URL of a user that may do everything; what it may not is for the test to say."""
    admin: Any = native.admin
    admin.execute_command("ACL", "SETUSER", "someone", "reset", "on", ">pass", "~*", "&*", "+@all")
    yield f"redis://someone:pass@127.0.0.1:{native.port}/0"
    admin.execute_command("ACL", "DELUSER", "someone")


async def test_who_may_not_ask_has_scripts_on_auto(native: ValkeyServer, user: str) -> None:
    """COMMAND is refused: auto says so and evaluates scripts; on wire 6 the commands are sent all the same."""
    admin: Any = native.admin
    admin.execute_command("ACL", "SETUSER", "someone", "-command")
    async with connect(user, wire="auto") as connector, connect(user, wire="6") as native_connector:
        assert (await Jobs(connector).enqueue("q", b"x")).admitted
        assert str(connector.spoken).startswith("auto (scripts: COMMAND: NOPERM ")
        admin.config_resetstat()
        assert (await Jobs(native_connector).enqueue("q", b"x")).admitted
        assert "cmdstat_EMQ.ENQUEUE" in admin.info("commandstats")


async def test_a_command_that_is_not_permitted_is_a_script_on_auto(native: ValkeyServer, user: str) -> None:
    """Once it was refused it is not tried again; the others are commands still."""
    admin: Any = native.admin
    admin.execute_command("ACL", "SETUSER", "someone", "-emq.enqueue")
    async with connect(user, wire="auto") as connector:
        jobs = Jobs(connector)
        admin.execute_command("ACL", "LOG", "RESET")
        assert [(await jobs.enqueue("q", b"x")).admitted for _ in range(3)] == [True] * 3
        assert (await jobs.enqueue_in("q", b"x", 1)).admitted
        assert {"EMQ.ENQUEUE", "EMQ.SCHEDULE"} & connector.spoken.commands == {"EMQ.SCHEDULE"}
        assert [entry["count"] for entry in admin.acl_log()] == [1]


async def test_each_connection_of_a_pool_finds_for_itself(native: ValkeyServer) -> None:
    """A pool is a number of connectors; where they differ the least is told."""
    async with connect_pool(native.url, size=2, wire="auto") as pool:
        full = str(pool.spoken)
        assert full.endswith("commands, scripts for the rest)")
        unload(native)
        await drop(pool._connectors[1], native)
        assert str(pool.spoken) == "auto (scripts: the server has no module emq)"
        assert [(await Jobs(pool).enqueue("q", b"x")).admitted for _ in range(4)] == [True] * 4


@pytest.mark.parametrize("wire", ["5", "native", "", 3, True])
def test_there_is_no_other_wire(wire: Any) -> None:
    """4, 6 and auto, as a number or in words."""
    with pytest.raises(ConfigError, match=r"wire=.*: expected one of 4, 6, auto"):
        Connector("redis://127.0.0.1:1/0", wire=wire)


def test_what_a_server_tells_of_the_module() -> None:
    """The commands and the version; one of another version is not spoken to, and it is said why."""
    names: list[Any] = [b"EMQ.SCHEDULE", b"emq.claim"]

    def docs(version: bytes) -> list[Any]:
        return [b"EMQ.SCHEDULE", [b"summary", b"x", b"since", version, b"module", b"emq"]]

    found = frozenset({"EMQ.SCHEDULE", "EMQ.CLAIM"})
    assert _told(names, docs(VERSION.encode())) == (found, "")
    assert _told(names, docs(b"0")) == (found, f"its module emq is of version 0, expected {VERSION}")
    assert _told(names, []) == (found, f"its module emq is of version unknown, expected {VERSION}")
    assert _told([], []) == (frozenset(), "the server has no module emq")
    assert _told(ServerError("ERR unknown command 'COMMAND'"), [])[0] == frozenset()


def test_the_table_names_scripts_that_there_are(native: ValkeyServer) -> None:
    """Each twin stands in for a script of the package, and the server has each of them."""
    admin: Any = native.admin
    has = {name.decode() for name in admin.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "emq")}

    assert set(TWINS) <= set(scripts())
    assert set(TWINS.values()) <= has
