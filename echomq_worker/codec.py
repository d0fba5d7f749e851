"""Payload bytes to and from values: raw, text, JSON, pydantic models and what pydantic can validate.

Source: design section 2 (a payload parameter is filled by its annotation), protocol section 1 (a payload is opaque
bytes). Bytes and text travel as they are; everything else is JSON in UTF-8. Error texts name types, fields that the
annotation knows, and positions, never what a payload holds: they end up in rows, logs and terminals. pydantic is
imported where it is needed, so that a producer of bytes does not pay for it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from echomq_worker.errors import ConfigError, InvalidArgument, Unreadable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Decoder: TypeAlias = Callable[[bytes | None], object]

PAYLOAD_BYTES = 64 * 1024 * 1024
"""The longest payload, or result of a handler, that is sent; what others have sent is read whatever its length."""

_ERRORS = 5
_NAME_CHARACTERS = 120
_UNKNOWN = "?"


def count_of(value: bytes | None) -> int:
    """A count in a row or a hash as the scripts read it: what is missing or no number, as others may leave it, is 0."""
    try:
        return int(value or 0)
    except ValueError:
        return 0


def encode(value: object, *, what: str = "payload") -> bytes:
    """The payload of a value: bytes as they are, text as UTF-8, anything else as compact JSON.

    A pydantic model writes itself, by alias; dataclasses, datetimes, enums and the like are written as pydantic does.
    NaN and infinities, bytes inside JSON, text without a UTF-8 form, and what is longer than 64 MiB are refused:
    InvalidArgument, which says `what` could not be written.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _bounded(bytes(value), what)
    try:
        if isinstance(value, str):
            written = value.encode()
        else:
            written = _model_json(value) if hasattr(type(value), "model_dump_json") else _json(value)
    except (TypeError, ValueError, RecursionError) as exc:
        reason = type(exc).__name__
    else:
        return _bounded(written, what)
    # Raised outside the except block: the library's own error quotes the value, and must not be chained to ours.
    raise InvalidArgument(
        f"{what} of type {_named(type(value))}: cannot be written ({reason}), "
        "expected bytes, text, JSON values without NaN, pydantic models or dataclasses"
    )


def _bounded(written: bytes, what: str) -> bytes:
    if len(written) > PAYLOAD_BYTES:
        raise InvalidArgument(f"{what} of {len(written)} bytes: expected at most {PAYLOAD_BYTES}")
    return written


def decoder_for(annotation: Any) -> Decoder:
    """A function from a payload to a value of the annotation; it raises Unreadable for a payload that is not one.

    `bytes` takes the payload as it is, `str` as UTF-8 text, also where they are annotated, subclassed (a `StrEnum`) or
    all members of a `Literal`; anything else is JSON, validated by pydantic. In a union with `bytes` or `str` the other
    members are tried first. ConfigError for an annotation that no payload can be read as.
    """
    members = get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else ()
    raw = [member for member in members if _is_raw(_base(member))]
    if raw:
        others = [member for member in members if member not in raw]
        # Text is tried before bytes: any payload would pass as bytes.
        raw.sort(key=lambda member: _base(member) is bytes)
        return _first_of([*([decoder_for(reduce(or_, others))] if others else []), *map(decoder_for, raw)])
    return _raw_decoder(annotation) if _is_raw(_base(annotation)) else _json_decoder(annotation)


def _model_json(model: Any) -> bytes:
    written: bytes = model.model_dump_json(by_alias=True, warnings=False).encode()
    # pydantic writes NaN as null, which the model itself cannot read again.
    if b"null" in written:
        _json(model)
    return written


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_jsonable).encode()


def _jsonable(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes inside JSON")
    from pydantic_core import to_jsonable_python

    jsonable: object = to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
    return jsonable


def _raw_decoder(annotation: Any) -> Decoder:
    read: Callable[[bytes | None], bytes | str] = _present if _base(annotation) is bytes else _text
    if annotation is bytes or annotation is str:
        return read
    adapter = _adapter(annotation)

    def decode(payload: bytes | None) -> object:
        return _validated(adapter.validate_python, read(payload), annotation, adapter)

    return decode


def _json_decoder(annotation: Any) -> Decoder:
    adapter = _adapter(annotation)

    def decode(payload: bytes | None) -> object:
        return _validated(adapter.validate_json, _present(payload), annotation, adapter)

    return decode


def _first_of(decoders: Sequence[Decoder]) -> Decoder:
    def decode(payload: bytes | None) -> object:
        refusals = []
        for decoder in decoders:
            try:
                return decoder(payload)
            except Unreadable as exc:
                refusals.append(exc)
        raise refusals[0]

    return decode


def _present(payload: bytes | None) -> bytes:
    if payload is None:
        raise Unreadable("payload: missing, the row holds none")
    return payload


def _text(payload: bytes | None) -> str:
    raw = _present(payload)
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        start = exc.start
    raise Unreadable(f"payload: expected text; not UTF-8 at byte {start}")


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation)
    except PydanticUserError as exc:
        raise _unusable(annotation, exc) from exc


def _unusable(annotation: Any, exc: Exception) -> ConfigError:
    first_line = str(exc).partition("\n")[0]
    return ConfigError(f"payload as {_named(annotation)}: {first_line}")


def _validated(validate: Callable[[Any], object], raw: object, annotation: Any, adapter: TypeAdapter[Any]) -> object:
    try:
        return validate(raw)
    except Exception as exc:  # noqa: BLE001 - a validator is anybody's code, and the payload is what it refused
        reason = _reason(exc, annotation, adapter)
    raise Unreadable(f"payload: expected {_named(annotation)}; {reason}")


def _reason(exc: Exception, annotation: Any, adapter: TypeAdapter[Any]) -> str:
    from pydantic import PydanticUserError, ValidationError

    if isinstance(exc, PydanticUserError):
        raise _unusable(annotation, exc) from exc
    if not isinstance(exc, ValidationError):
        return f"its validation raised {_named(type(exc))}"
    words = _words(adapter.core_schema)
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    told = []
    for error in errors[:_ERRORS]:
        # The parser's message holds a position only; any other may quote the payload, its type does not.
        what = error["msg"] if error["type"] == "json_invalid" else error["type"]
        where = ".".join(str(step) if isinstance(step, int) or step in words else _UNKNOWN for step in error["loc"])
        told.append(f"{where}: {what}" if where else what)
    more = f"; and {len(errors) - _ERRORS} more" if len(errors) > _ERRORS else ""
    return "; ".join(told) + more


def _words(schema: object) -> frozenset[str]:
    """Every text of a schema: a place in a payload may be named by these, and by no text of the payload's own."""
    words: set[str] = set()
    seen: set[int] = set()
    waiting: list[object] = [schema]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, str):
            words.add(item)
        elif isinstance(item, type):
            words.add(item.__name__)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
    return frozenset(words)


def _is_raw(base: Any) -> bool:
    if get_origin(base) is Literal:
        return all(isinstance(value, str) for value in get_args(base))
    return isinstance(base, type) and (base is bytes or issubclass(base, str))


def _base(annotation: Any) -> Any:
    """What an annotation is about: without metadata, and behind a type alias or a NewType."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__") and not isinstance(annotation, type):
            annotation = annotation.__value__
        else:
            return annotation


def _named(annotation: Any) -> str:
    name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    shown = ascii(name)[1:-1]
    return shown if len(shown) <= _NAME_CHARACTERS else f"{shown[:_NAME_CHARACTERS]}..."


def event_text(name: str, job: str, **said: str) -> str:
    """An event as it is published."""
    return json.dumps({"event": name, "job": job, **said}, separators=(",", ":"))
