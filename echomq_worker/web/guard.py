"""Guard: everything that is decided about a request before a page sees it, and the headers of every answer.

Source: issue "Made for the people who run it", A dashboard (a token or basic auth, CSRF-safe, strict content security
policy, DNS rebinding). A form is read here, so that no action can forget to ask for its token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echomq_worker.errors import InvalidArgument
from echomq_worker.web.access import SESSION_MS, Session, same_origin
from echomq_worker.web.render import path
from echomq_worker.web.visit import FORM_BYTES, Visit, read_fields

if TYPE_CHECKING:
    from echomq_worker.web.app import Dashboard

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # Without a referrer browsers would not send the origin of a form, either.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)
_SAFE = ("GET", "HEAD")
_LOGIN = "/login"
_OF_ITS_OWN = (_LOGIN, "/logout")

Fields = Mapping[str, Sequence[str]]


class Turned(Exception):
    """A request that is not let in, with the answer."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})


class Guard:
    """Wraps the pages. What they get is a `Visit` in the scope, under `emq`."""

    def __init__(self, app: ASGIApp, dash: Dashboard) -> None:
        self._app = app
        self._dash = dash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        request = Request(scope, receive)
        doorman, now_ms = self._dash.doorman, self._dash.clock.now_ms()
        session = doorman.read(request.cookies.get(doorman.cookie), now_ms)
        fresh = session is None
        if session is None:
            session = doorman.new("visitor", now_ms)
        answer = _sending(send, scope, (doorman.cookie, doorman.written(session)) if fresh else None)
        visit = Visit(self._dash, request, session, {})
        where = _below(scope)
        try:
            self._check_host(request)
            if not where.startswith("/static/"):
                by_header = doorman.access.admits(request.headers.get("authorization"))
                if where != _LOGIN:
                    self._check_access(request, session, by_header=by_header)
                if request.method not in _SAFE:
                    self._check_change(request, where)
                    visit.form = await self._form(request, session, by_header=by_header)
        except Turned as turned:
            await self._turn(visit, turned)(scope, receive, answer)
            return
        except ClientDisconnect:
            return
        scope["emq"] = visit
        await self._app(scope, receive, answer)

    def _check_host(self, request: Request) -> None:
        if not self._dash.doorman.knows_host(request.headers.get("host")):
            raise Turned(421, "This dashboard does not answer under that host name.")

    def _check_access(self, request: Request, session: Session, *, by_header: bool) -> None:
        kind = self._dash.doorman.access.kind
        if by_header or (kind == "token" and session.level == "in"):
            return
        if kind == "password":
            raise Turned(401, "Log in to see it.", {"WWW-Authenticate": 'Basic realm="echomq", charset="UTF-8"'})
        if request.method in _SAFE and "text/html" in request.headers.get("accept", "*/*").replace("*/*", "text/html"):
            raise Turned(303, "")
        raise Turned(401, "Log in to see it.", {"WWW-Authenticate": 'Bearer realm="echomq"'})

    def _check_change(self, request: Request, where: str) -> None:
        if request.method != "POST":
            raise Turned(405, "Expected GET or POST.", {"Allow": "GET, HEAD, POST"})
        if not same_origin(request.headers):
            raise Turned(403, "That form was not sent by a page of this dashboard: nothing was changed.")
        if self._dash.read_only and where not in _OF_ITS_OWN:
            raise Turned(403, "This dashboard only reads: nothing was changed.")

    async def _form(self, request: Request, session: Session, *, by_header: bool) -> Fields:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                raise Turned(413, f"That is more than a form may hold ({FORM_BYTES} bytes): nothing was changed.")
        try:
            fields = read_fields(bytes(body))
        except InvalidArgument as error:
            raise Turned(400, f"{error}: nothing was changed.") from None
        # No browser sends a token in a header by itself; a password it does send.
        proven = by_header and self._dash.doorman.access.kind == "token"
        if not proven and not self._dash.doorman.is_form_token(session, fields.get("form_token", [""])[0]):
            raise Turned(
                403, "That form is too old, or not of this dashboard: nothing was changed. Load its page again."
            )
        return fields

    def _turn(self, visit: Visit, turned: Turned) -> Response:
        if turned.status == 303:
            return RedirectResponse(path(visit.root, "login"), status_code=303)
        response = visit.page("error.html", status=turned.status, title="Not let in", text=turned.why)
        response.headers.update(turned.headers)
        return response


def session_cookie(name: str, value: str, scope: Scope, *, age_s: int = SESSION_MS // 1000) -> str:
    """A `Set-Cookie` for as long as a session lasts, that no script and no other site gets."""
    where = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{name}={value}; Path={where}; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"


def _sending(send: Send, scope: Scope, fresh: tuple[str, str] | None) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [
                (name.lower().encode(), value.encode()) for name, value in HEADERS if name.lower().encode() not in names
            ]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
                if fresh is not None and b"set-cookie" not in names:
                    headers.append((b"set-cookie", session_cookie(*fresh, scope).encode()))
            message = {**message, "headers": headers}
        await send(message)

    return wrapped


def _below(scope: Scope) -> str:
    """The path below where the dashboard is mounted."""
    where: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return where.removeprefix(root) if root and where.startswith(f"{root}/") else where
