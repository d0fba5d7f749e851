"""Visit: one request as the pages have it: who asks, what the form holds, and how an answer is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from echomq_worker.errors import InvalidArgument
from echomq_worker.web.access import Session
from echomq_worker.web.reading import Reader
from echomq_worker.web.render import path

if TYPE_CHECKING:
    from echomq_worker.connector import Wire
    from echomq_worker.web.app import Dashboard

FORM_BYTES = 2 * 1024 * 1024
FORM_FIELDS = 1_000

# The messages that a page shows after an action, by name: a text in the address itself could be anybody's.
_SAID = {
    "paused": "Paused: nothing of it is claimed until it is resumed. What is in hand goes on.",
    "resumed": "Resumed: it is served again.",
    "requeued": "Requeued, with nothing held against it.",
    "deleted": "Deleted.",
    "saved": "The payload is saved. The job is still dead.",
    "saved-requeued": "The payload is saved and the job is requeued.",
    "removed": "The job was not running: it is removed.",
    "asked": "Its worker was asked to end it. Whether it does is the handler's decision.",
    "ended": "It is dead already: nothing was changed.",
    "gone": "It is gone: nothing was changed.",
    "added": "The job is enqueued.",
    "cancelled": "The repeat is cancelled. What it has enqueued stays.",
    "not-dead": "It is not dead any more: nothing was changed.",
}


class Visit:
    """A request that was let in. `form` has the fields of a POST, each with all its values."""

    __slots__ = ("dash", "form", "request", "root", "session")

    def __init__(self, dash: Dashboard, request: Request, session: Session, form: Mapping[str, Sequence[str]]) -> None:
        self.dash = dash
        self.request = request
        self.session = session
        self.form = form
        self.root: str = request.scope.get("root_path", "").rstrip("/")

    @property
    def wire(self) -> Wire:
        """What the verbs are sent over."""
        return self.dash.wire

    @property
    def queue(self) -> str:
        """The queue of the path."""
        return str(self.request.path_params["queue"])

    @property
    def id(self) -> str:
        """The id of the path."""
        return str(self.request.path_params["id"])

    @property
    def reader(self) -> Reader:
        """Reads the queue of the path. Raises InvalidQueueName."""
        return Reader(self.wire, self.queue)

    def field(self, name: str, default: str = "") -> str:
        """The first value of a form's field."""
        values = self.form.get(name)
        return values[0] if values else default

    def asked(self, name: str, default: str = "") -> str:
        """A value of the address's query."""
        return self.request.query_params.get(name, default)

    def path(self, *parts: str, **query: object) -> str:
        """An address of the dashboard."""
        return path(self.root, *parts, **query)

    def go(self, *parts: str, **query: object) -> Response:
        """Send the browser there, with GET."""
        return RedirectResponse(self.path(*parts, **query), status_code=303)

    def fragment(self, name: str, **values: Any) -> str:
        """A template as text."""
        return self.dash.templates.get_template(name).render(
            url=self.path,
            dash=self.dash,
            read_only=self.dash.read_only,
            form_token=self.dash.doorman.form_token(self.session),
            **values,
        )

    def page(self, name: str, *, status: int = 200, **values: Any) -> Response:
        """A template as a page. `said` of the address is told as one of our own texts."""
        values.setdefault("said", _SAID.get(self.asked("said"), ""))
        values.setdefault("problem", "")
        values.setdefault("live", "")
        return HTMLResponse(self.fragment(name, **values), status_code=status)


def whole_number(text: str, name: str, *, at_least: int = 0, at_most: int = 2**53) -> int:
    """A number that a person has written. Raises InvalidArgument."""
    if text.isascii() and text.isdecimal() and len(text) < 17 and at_least <= int(text) <= at_most:
        return int(text)
    raise InvalidArgument(f"{name}: expected an integer from {at_least} to {at_most}")


def read_fields(body: bytes) -> dict[str, list[str]]:
    """The fields of a form that a browser has sent. Raises InvalidArgument."""
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=FORM_FIELDS, errors="surrogateescape"
        )
    except ValueError:
        raise InvalidArgument("form: it cannot be read, expected application/x-www-form-urlencoded") from None
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields
