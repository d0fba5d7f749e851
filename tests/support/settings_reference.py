"""The settings as docs/settings.md has them: variable, name, option, meaning, type, default, unit, bounds.

Source: issue "Made for the people who run it", Docs (references generated from the code).
"""

from __future__ import annotations

from typing import Literal, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from echomq_worker.hostport import FORM
from echomq_worker.settings import URL_FORMS, Settings, variable
from tests.support.cli_reference import flags_of

_FORMS = {"url": ("URL", URL_FORMS), "http": ("address", FORM)}


def table() -> str:
    """A row for each setting, in the order in which they are declared."""
    head = ["| variable, name, option | meaning | type | default | unit | bounds |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(name, field) for name, field in Settings.model_fields.items())])


def _row(name: str, field: FieldInfo) -> str:
    names = "<br>".join(f"`{one}`" for one in (variable(name), name, *flags_of(name)))
    default = "unset" if field.default is None else f"`{str(field.default).lower()}`"
    kind, bounds = _FORMS.get(name) or _kind(field)
    unit = "ms" if name.endswith("_ms") else ""
    return f"| {names} | {field.description} | {kind} | {default} | {unit} | {bounds} |"


def _kind(field: FieldInfo) -> tuple[str, str]:
    """Its type in a word or two, and what it is held to."""
    if get_origin(field.annotation) is Literal:
        return "word", ", ".join(map(str, get_args(field.annotation)))
    kind = next(one for one in (*get_args(field.annotation), field.annotation) if one is not type(None))
    if kind is bool:
        return "true or false", ""
    if kind is SecretStr:
        return "secret text", ""
    if kind is int:
        return "integer", f"{_mark(field, Ge, 'ge')} to {_mark(field, Le, 'le')}"
    return "text", f"{_mark(field, MinLen, 'min_length')} to {_mark(field, MaxLen, 'max_length')} characters"


def _mark(field: FieldInfo, kind: type, name: str) -> int:
    return int(next(getattr(mark, name) for mark in field.metadata if isinstance(mark, kind)))
