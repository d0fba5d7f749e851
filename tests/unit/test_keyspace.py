"""Key names, pinned byte for byte, what is refused before the wire, and the slot of a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.errors import InvalidArgument, InvalidId, InvalidQueueName
from echomq_worker.keyspace import FENCE_KEY, Keys, check_queue, slot

ID = "JOB0KHTOWnGLuC"
GROUP = "GRP0NgWEfAEJfs"
QUEUES = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True).filter(lambda name: name != "emq")

ATTRIBUTES = {
    "base": b"emq:{emails}:",
    "pending": b"emq:{emails}:pending",
    "active": b"emq:{emails}:active",
    "schedule": b"emq:{emails}:schedule",
    "dead": b"emq:{emails}:dead",
    "ring": b"emq:{emails}:ring",
    "wake": b"emq:{emails}:wake",
    "ready": b"emq:{emails}:ready",
    "paused": b"emq:{emails}:paused",
    "glimit": b"emq:{emails}:glimit",
    "gactive": b"emq:{emails}:gactive",
    "gweight": b"emq:{emails}:gweight",
    "meta": b"emq:{emails}:meta",
    "completed": b"emq:{emails}:metrics:completed",
    "failed": b"emq:{emails}:metrics:failed",
    "repeat": b"emq:{emails}:repeat",
    "cron": b"emq:{emails}:cron",
    "kept": b"emq:{emails}:kept",
    "limiter": b"emq:{emails}:limiter",
    "outbox": b"emq:{emails}:flow:outbox",
    "malformed": b"emq:{emails}:flow:outbox:malformed",
    "events": b"emq:{emails}:events",
    "cancel": b"emq:{emails}:cancel",
}
METHODS = [
    ("job", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC"),
    ("logs", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:logs"),
    ("lock", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:lock"),
    ("dependencies", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:dependencies"),
    ("processed_children", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:processed"),
    ("failed_children", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:failed"),
    ("unsuccessful_children", ID, b"emq:{emails}:job:JOB0KHTOWnGLuC:unsuccessful"),
    ("lane", GROUP, b"emq:{emails}:g:GRP0NgWEfAEJfs:pending"),
    ("receipt", "host-1:7:a", b"emq:{emails}:claimed:host-1:7:a"),
    ("dedup", "order 1", b"emq:{emails}:de:order 1"),
    ("repeat_record", "nächtlich", "emq:{emails}:repeat:nächtlich".encode()),
    ("repeat_record", "", b"emq:{emails}:repeat:"),
]
TAKES_ID = sorted({name for name, argument, _ in METHODS if argument in {ID, GROUP}})
TAKES_NAME = ["dedup", "receipt", "repeat_record"]


def test_every_attribute_is_pinned() -> None:
    """Each key that a queue has one of is exactly the protocol's, and no attribute is left unpinned."""
    keys = Keys("emails")
    assert {name: getattr(keys, name).encode() for name in ATTRIBUTES} == ATTRIBUTES
    assert set(Keys.__slots__) == {*ATTRIBUTES, "queue"}
    assert keys.queue == "emails"
    assert repr(keys) == "Keys('emails')"


@pytest.mark.parametrize(("method", "argument", "expected"), METHODS)
def test_every_method_is_pinned(method: str, argument: str, expected: bytes) -> None:
    """Each key of a job, a lane, a consumer or a name is exactly the protocol's."""
    assert getattr(Keys("emails"), method)(argument).encode() == expected


def test_no_method_is_left_unpinned() -> None:
    """A method added to Keys must be pinned here; `found` is `job` for an id that others have made."""
    methods = {name for name in vars(Keys) if not name.startswith("_")} - set(Keys.__slots__)
    assert Keys("q").found("no id: é") == "emq:{q}:job:no id: é"
    assert methods - {"found"} == {name for name, _, _ in METHODS} == {*TAKES_ID, *TAKES_NAME}


def test_the_fence_key_is_pinned() -> None:
    """The fence is one key of the deployment, outside every queue (protocol section 3)."""
    assert FENCE_KEY == "{emq}:version"


@given(QUEUES, st.text())
def test_all_keys_of_a_queue_share_one_slot(queue: str, name: str) -> None:
    """Whatever a name holds, also braces, every key of a queue is in the slot of the queue's name.

    Report 102 (Bogdanp/dramatiq#754).
    """
    keys = Keys(queue)
    named = [getattr(keys, method)(name) for method in TAKES_NAME]
    branded = [getattr(keys, method)(ID) for method in TAKES_ID]
    single = [getattr(keys, attribute) for attribute in ATTRIBUTES]
    assert {slot(key) for key in [*named, *branded, *single]} == {slot(queue)}


@given(QUEUES)
def test_a_queue_name_of_the_rule_is_accepted(queue: str) -> None:
    """Every name of the rule is taken as it is."""
    assert check_queue(queue) is queue


@pytest.mark.parametrize("name", ["a", "emq.", "EMQ", "emqs", "-", "..", "A" * 128, "Z_9.-"])
def test_queue_names_at_the_edge_of_the_rule_are_accepted(name: str) -> None:
    """One to 128 of the alphabet; only the exact name emq is reserved."""
    assert Keys(name).base == f"emq:{{{name}}}:"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "emq",
        "a" * 129,
        "a" * 1_000_000,
        "two words",
        "emails\n",
        "{emails}",
        "a:b",
        "a/b",
        "größe",
        "a\x00",
        "\u0661",
        "\ud800",
        "*",
    ],
    ids=ascii,
)
def test_other_queue_names_are_refused_in_one_short_line(name: str) -> None:
    """A name outside the rule is a ValueError that says what was expected, printable and short."""
    for refused in (check_queue, Keys):
        with pytest.raises(InvalidQueueName, match=r"^queue .*: expected 1\.\.128 of") as caught:
            refused(name)
        assert isinstance(caught.value, ValueError)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 160


@pytest.mark.parametrize("name", [None, b"emails", 7, ["emails"]])
def test_a_queue_name_is_text(name: Any) -> None:
    """Bytes and other values are refused like any bad name."""
    with pytest.raises(InvalidQueueName, match=r"^queue (of type \w+|None|7): expected"):
        check_queue(name)


@pytest.mark.parametrize("method", TAKES_ID)
@pytest.mark.parametrize("id", ["", "JOB", f"{ID}0", ID[:13], f"{ID[:13]}\n", "JOBzzzzzzzzzzz", "a:b", None])
def test_a_malformed_id_never_becomes_a_key(method: str, id: Any) -> None:
    """The key builder refuses a malformed id before the wire (protocol section 2), here also one of 13 bytes."""
    with pytest.raises(InvalidId):
        getattr(Keys("emails"), method)(id)


def test_a_foreign_namespace_becomes_a_key() -> None:
    """The namespace is the script's to refuse, so that every runtime sees the same refusal."""
    assert Keys("emails").job("USR0KHTOWnGLuC") == "emq:{emails}:job:USR0KHTOWnGLuC"


@pytest.mark.parametrize("method", TAKES_NAME)
@pytest.mark.parametrize("name", ["\ud800", b"name", None, 7])
def test_a_name_without_a_wire_form_never_becomes_a_key(method: str, name: Any) -> None:
    """A name must have a UTF-8 form; the refusal is one printable line."""
    with pytest.raises(InvalidArgument, match=r": expected text") as caught:
        getattr(Keys("emails"), method)(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("123456789", 12739),
        (b"123456789", 12739),
        ("", 0),
        ("foo", 12182),
        ("bar", 5061),
        ("{foo}", 12182),
        ("a{foo}b{bar}", 12182),
    ],
)
def test_slot_vectors(key: str | bytes, expected: int) -> None:
    """CRC16-XMODEM of the hash tag modulo 16384; the vector of protocol section 2 and the servers' own."""
    assert slot(key) == expected


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("emq:{emails}:pending", "emails"),
        ("{user1000}.following", "user1000"),
        ("foo{{bar}}zap", "{bar"),
        ("foo{bar}{zap}", "bar"),
        ("}{bar}", "bar"),
    ],
)
def test_the_hash_tag_is_between_the_first_braces(key: str, hashed: str) -> None:
    """Only what stands between the first opening brace and the next closing one counts."""
    assert slot(key) == crc16(hashed.encode()) % 16384


@pytest.mark.parametrize("key", ["foo{}{bar}", "foo{bar", "foo}bar", "{}", "{"])
def test_without_a_hash_tag_the_whole_key_counts(key: str) -> None:
    """An empty or unclosed pair of braces is no hash tag."""
    assert slot(key) == crc16(key.encode()) % 16384


@given(st.binary())
def test_the_slot_follows_the_published_definition(key: bytes) -> None:
    """The slot is CRC16 with polynomial 0x1021 and start 0, bit by bit, for any key."""
    opening = key.find(b"{")
    closing = key.find(b"}", opening + 1)
    tagged = opening >= 0 and closing > opening + 1
    assert slot(key) == crc16(key[opening + 1 : closing] if tagged else key) % 16384


def crc16(data: bytes) -> int:
    """CRC16-XMODEM the slow way."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ (0x1021 if crc & 0x8000 else 0)
        crc &= 0xFFFF
    return crc
