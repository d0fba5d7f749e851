"""Payloads: round trips of every kind, refusals on either side, and error texts that hold nothing of a payload."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType
from typing import TypedDict as OldTypedDict
from uuid import UUID

import pytest
from annotated_types import MaxLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypeAliasType, TypedDict

from echomq_worker.codec import decoder_for, encode
from echomq_worker.errors import ConfigError, Unreadable

ROOT = Path(__file__).parents[2]
EVERY_BYTE = bytes(range(256))
SECRET = "4111-1111-1111-1111"

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
CONTAINERS = st.recursive(
    st.lists(SCALARS) | st.dictionaries(st.text(), SCALARS),
    lambda inner: st.lists(inner | SCALARS, max_size=4) | st.dictionaries(st.text(), inner | SCALARS, max_size=4),
    max_leaves=10,
)


class Email(BaseModel):
    """A model told apart by `kind`, with an alias and an optional field."""

    kind: Literal["email"] = "email"
    to: str
    sender: str | None = Field(None, alias="from")
    weight: float = 1.0


class Push(BaseModel):
    """The other member of the union."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["push"] = "push"
    device: int
    tags: dict[str, int] = {}


Message = Annotated[Email | Push, Field(discriminator="kind")]


class Row(TypedDict):
    """A typed dictionary."""

    day: datetime
    count: int


class OldRow(OldTypedDict):
    """What pydantic refuses below Python 3.12."""

    count: int


@dataclass
class Order:
    """A plain dataclass."""

    id: UUID
    lines: list[int]


class Color(StrEnum):
    """An enum of texts."""

    RED = "red"


class Size(Enum):
    """An enum of something else."""

    SMALL = 1


class Unfit:
    """A class that pydantic knows nothing of."""


UserId = NewType("UserId", str)


class Node(BaseModel):
    """A model that holds itself."""

    value: int
    children: list[Node] = []


class Strict(BaseModel):
    """A model whose validators are a user's own code."""

    number: int

    @field_validator("number")
    @classmethod
    def small(cls, number: int) -> int:
        """Quote what was refused, as users do."""
        if number > 9:
            raise ValueError(f"{number} of {SECRET} is too large")
        return number

    @model_validator(mode="before")
    @classmethod
    def unwrapped(cls, data: Any) -> Any:
        """Fail with whatever a missing key gives."""
        return data["inner"]


def chain(exc: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that are chained to it, shown or not."""
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def refusal(annotation: Any, payload: Any) -> str:
    """The text of the one-line refusal; nothing that is chained to it may quote the payload."""
    with pytest.raises(Unreadable, match=r"^payload: ") as caught:
        decoder_for(annotation)(payload)
    assert list(chain(caught.value)) == [caught.value]
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("value", [EVERY_BYTE, bytearray(EVERY_BYTE), memoryview(EVERY_BYTE), b"", b"\xff\xfe"])
def test_bytes_travel_as_they_are(value: bytes | bytearray | memoryview) -> None:
    """All 256 byte values round-trip, and nothing is added."""
    assert encode(value) == bytes(value)
    assert decoder_for(bytes)(encode(value)) == bytes(value)


@given(st.text())
def test_text_travels_as_utf_8(text: str) -> None:
    """Text is the payload itself, without quotes, and comes back."""
    assert encode(text) == text.encode()
    assert decoder_for(str)(encode(text)) == text


@given(CONTAINERS)
def test_json_round_trips(value: object) -> None:
    """JSON values come back equal, and of the same type, through compact UTF-8 JSON that any client can read."""
    payload = encode(value)
    assert decoder_for(Any)(payload) == value
    assert repr(decoder_for(object)(payload)) == repr(value)
    assert json.loads(payload) == value


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, b"null"),
        (True, b"true"),
        (7, b"7"),
        (1.5, b"1.5"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (["größe"], '["größe"]'.encode()),
        ((1, 2), b"[1,2]"),
        ({1: "x"}, b'{"1":"x"}'),
        (Email(to="a", **{"from": "b"}), b'{"kind":"email","to":"a","from":"b","weight":1.0}'),
        ({"mails": [Email(to="a")]}, b'{"mails":[{"kind":"email","to":"a","from":null,"weight":1.0}]}'),
        (Order(UUID(int=1), [2]), b'{"id":"00000000-0000-0000-0000-000000000001","lines":[2]}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, b'{"at":"2026-01-02T00:00:00Z"}'),
        (Size.SMALL, b"1"),
        (Color.RED, b"red"),
    ],
    ids=range(14),
)
def test_what_is_written(value: object, payload: bytes) -> None:
    """The payload of each kind of value, byte for byte."""
    assert encode(value) == payload


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Email, Email(to="a", **{"from": "b"})),
        (Email, Email(to="größe")),
        (Email | Push, Push(device=3, tags={"x": 1})),
        (Message, Email(to="a")),
        (Message, Push(device=3)),
        (list[Message], [Push(device=3), Email(to="a")]),
        (Email | None, None),
        (Node, Node(value=1, children=[Node(value=2)])),
        (Row, Row(day=datetime(2026, 1, 2, tzinfo=UTC), count=1)),
        (Order, Order(UUID(int=7), [1, 2])),
        (dict, {"a": 1}),
        (dict[str, list[int]], {"a": [1]}),
        (list, [1, "a", None]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (int, 7),
        (float, 1.5),
        (bool, True),
        (None, None),
        (UUID, UUID(int=7)),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
        (Size, Size.SMALL),
        (Color, Color.RED),
        (UserId, UserId("u-1")),
        (TypeAliasType("Name", str), "abc"),
        (TypeAliasType("Numbers", list[int]), [1]),
        (Literal["a", "b"], "b"),
        (Literal["a", 1], 1),
        (Annotated[str, MaxLen(3)], "abc"),
        (Annotated[bytes, MaxLen(3)], b"\xff\xfe"),
        (Annotated[str, Field(max_length=3)], "abc"),
        (str | None, None),
        (str | None, "abc"),
        (str | Email, Email(to="a")),
        (str | Email, "not json"),
        (bytes | Email, Email(to="a")),
        (bytes | Email, b"\xff\xfe"),
        (bytes | str, "größe"),
        (bytes | str, b"\xff"),
    ],
    ids=range(39),
)
def test_a_value_of_the_annotation_round_trips(annotation: Any, value: object) -> None:
    """What a producer hands over as this type is what the handler gets, equal and of the same type."""
    decoded = decoder_for(annotation)(encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


@given(st.builds(Email, to=st.text(), weight=st.floats(allow_nan=False, allow_infinity=False)), st.text())
def test_models_round_trip(email: Email, sender: str) -> None:
    """Any model comes back equal, in a union told apart by a field as well."""
    email.sender = sender
    assert decoder_for(Email)(encode(email)) == email
    assert decoder_for(Message)(encode(email)) == email


@pytest.mark.parametrize("annotation", [bytes, str, Any, dict, Email, Message, Email | None, str | None, Row, int])
def test_a_missing_payload_is_unreadable(annotation: Any) -> None:
    """A row without a payload reaches no handler, whatever the handler takes (P10)."""
    assert refusal(annotation, None) == "payload: missing, the row holds none"


@pytest.mark.parametrize(
    "payload", [b"\xff\xfe", b'{"to"', b"", b"null", b"[]", b"7", b"NaN", b"[" * 100_000, b'{"a":""}']
)
@pytest.mark.parametrize("annotation", [Email, Message, Row, Order, dict[str, int], Node])
def test_what_is_not_the_annotation_is_unreadable(annotation: Any, payload: bytes) -> None:
    """Broken bytes, broken JSON, null and values of another shape are refused by every structured annotation."""
    assert refusal(annotation, payload).startswith("payload: expected ")


@pytest.mark.parametrize("payload", [b"\xff\xfe", b'{"to"', b"", b"[" * 100_000])
@pytest.mark.parametrize("annotation", [Any, object, int, None])
def test_what_is_not_json_is_unreadable(annotation: Any, payload: bytes) -> None:
    """An annotation of any JSON still needs JSON."""
    assert "Invalid JSON" in refusal(annotation, payload)


@given(st.binary())
def test_any_payload_is_read_or_refused(payload: bytes) -> None:
    """No bytes make a decoder raise anything but Unreadable."""
    for annotation in (str, Any, Email | Push, Email | str, Color):
        with suppress(Unreadable):
            decoder_for(annotation)(payload)


@pytest.mark.parametrize(
    ("annotation", "payload", "expected"),
    [
        (str, b"ab\xff", "payload: expected text; not UTF-8 at byte 2"),
        (
            Email,
            b'{"to"',
            "payload: expected Email; Invalid JSON: EOF while parsing an object at line 1 column 5",
        ),
        (Email, b"null", "payload: expected Email; model_type"),
        (Email, b'{"weight":"x"}', "payload: expected Email; to: missing; weight: float_parsing"),
        (list[Email], b'[{"to":"a"},{"to":1}]', "list[tests.unit.test_codec.Email]; 1.to: string_type"),
        (Email | Push, b'{"kind":"push"}', "Email.kind: literal_error; Email.to: missing; Push.device: missing"),
        (Literal["a", "b"], b"c", "payload: expected typing.Literal['a', 'b']; literal_error"),
        (Color, b"blue", "payload: expected Color; enum"),
        (Annotated[bytes, MaxLen(2)], b"abc", "bytes_too_long"),
        (list[int], json.dumps(["x"] * 100).encode(), "4: int_parsing; and 95 more"),
    ],
    ids=range(10),
)
def test_a_refusal_names_what_was_expected_and_where(annotation: Any, payload: bytes, expected: str) -> None:
    """One line: the type, the place, the kind of error."""
    assert expected in refusal(annotation, payload)


@pytest.mark.parametrize(
    ("annotation", "document"),
    [
        (Email, {"to": {SECRET: SECRET}, "weight": SECRET}),
        (Email, SECRET),
        (Push, {"device": SECRET, SECRET: SECRET}),
        (Push, {"device": 1, "tags": {SECRET: SECRET}}),
        (Message, {"kind": SECRET}),
        (Email | Push, {"kind": SECRET}),
        (dict[str, int], {SECRET: SECRET}),
        (dict[int, int], {SECRET: 1}),
        (Literal["a", "b"], SECRET),
        (Row, {"day": SECRET, "count": SECRET}),
        (Order, {"id": SECRET, "lines": [SECRET]}),
        (Strict, {"inner": {"number": 10}}),
        (Strict, {SECRET: 1}),
        (Color, SECRET),
        (int, SECRET),
    ],
    ids=range(15),
)
def test_a_refusal_holds_nothing_of_the_payload(annotation: Any, document: object) -> None:
    """Neither values nor unknown keys nor a validator's own words get into an error text, which goes to logs."""
    assert SECRET not in refusal(annotation, json.dumps(document).encode())
    assert SECRET not in refusal(annotation, f'{{"{SECRET}'.encode())


def test_a_validator_that_fails_otherwise_is_a_refusal() -> None:
    """A validator that raises a KeyError instead of a ValueError has refused the payload all the same."""
    assert refusal(Strict, b"{}") == "payload: expected Strict; its validation raised KeyError"


def test_a_long_annotation_is_cut_in_the_refusal() -> None:
    """A refusal stays short whatever the type is called."""
    many = Literal[tuple(f"choice-{number}" for number in range(1000))]  # type: ignore[valid-type]  # made at run time
    assert len(refusal(many, b"other")) < 200


@pytest.mark.parametrize("annotation", [OldRow, Unfit, object()], ids=range(3))
def test_an_annotation_that_nothing_can_be_read_as_is_a_config_error(annotation: Any) -> None:
    """A mistake in the code shows at the start, in one line, not at the first job."""
    if annotation is OldRow and sys.version_info >= (3, 12):
        pytest.skip("pydantic reads typing.TypedDict here")
    with pytest.raises(ConfigError, match=r"^payload as .*: [^\n]+$"):
        decoder_for(annotation)


def test_a_model_that_is_never_defined_is_a_config_error() -> None:
    """A model with a name that never comes to be is the code's mistake, not the payload's."""
    later = type("Later", (BaseModel,), {"__module__": __name__, "__annotations__": {"x": "NeverDefined"}})
    with pytest.raises(ConfigError, match=r"^payload as Later: .*not fully defined"):
        decoder_for(later)(b"{}")


def test_a_large_payload_goes_through() -> None:
    """Sixteen megabytes are written and read like a short one."""
    email = Email(to="x" * 16_000_000)
    assert decoder_for(Email)(encode(email)) == email
    assert decoder_for(bytes)(encode(email)) == encode(email)


def test_bytes_and_json_need_no_pydantic() -> None:
    """A producer of bytes, text and JSON does not load pydantic: it is most of a small process's memory."""
    code = (
        "import sys; from echomq_worker.codec import decoder_for, encode\n"
        "for value in (b'x', 'x', {'a': [1, None]}): encode(value)\n"
        "decoder_for(bytes)(b'x'), decoder_for(str)(b'x')\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
