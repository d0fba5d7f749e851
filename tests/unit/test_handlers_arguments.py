"""How a handler's arguments are filled: by name and annotation, decided once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from echomq_worker.errors import Unreadable
from echomq_worker.handlers import Handlers, PayloadRefused
from echomq_worker.job import Job
from tests.support.executing import bound
from tests.support.models import Base, Email, Order, Resources, Row, Sms

if TYPE_CHECKING:
    from echomq_worker.job import Job as CheckerJob


def a_job(payload: bytes = b"raw") -> Job:
    """A job without a context: binding asks for nothing of it."""
    return Job(cast("Any", None), "JOB0KHTOWnGLuC", payload, 1)


def called(handler: Callable[..., Any], payload: bytes = b"raw", state: object = None, **options: Any) -> Any:
    """What a plain `handler` returns for a job with this payload."""
    return bound(handler, **options).caller(state)(a_job(payload))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The value of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def test_a_decorated_function_stays_what_it_was() -> None:
    """It is returned unchanged, callable as before."""
    handlers = Handlers()

    @handlers.register("work", concurrency=5)
    async def send(job: Job, email: Email) -> str:
        return email.to

    assert run(send(a_job(), Email(to="a@b"))) == "a@b"
    assert handlers.get("work") is not None
    assert handlers.get("work").function is send  # type: ignore[union-attr]  # looked at one line above


def test_every_parameter_may_be_missing() -> None:
    """Only the job, only the payload, nothing, only the state."""

    def job_only(job: Job) -> object:
        return job

    def payload_only(payload: bytes) -> object:
        return payload

    def nothing() -> object:
        return "nothing"

    def state_only(state: object) -> object:
        return state

    assert isinstance(called(job_only), Job)
    assert called(payload_only) == b"raw"
    assert called(nothing) == "nothing"
    assert called(state_only, state=7) == 7


def signatures() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every order of two or three parameters, with no mark or one of `/` and `*` wherever Python allows it."""
    for names in (
        *itertools.permutations(("job", "body", "state"), 2),
        *itertools.permutations(("job", "body", "state")),
    ):
        texts = ["body: int" if name == "body" else name for name in names]
        yield names, ", ".join(texts)
        for at in range(len(texts)):
            yield names, ", ".join([*texts[:at], "*", *texts[at:]])
            yield names, ", ".join([*texts[: at + 1], "/", *texts[at + 1 :]])


@pytest.mark.parametrize(("names", "parameters"), list(signatures()))
def test_any_order_and_kind_of_parameters_is_filled(names: tuple[str, ...], parameters: str) -> None:
    """Positional-only, keyword-only or both, in any order: each gets its own."""
    scope: dict[str, Any] = {}
    exec(f"def handler({parameters}): return ({', '.join(names)})", scope)  # noqa: S102 - the text is ours

    got = dict(zip(names, called(scope["handler"], b"42", "the state"), strict=True))

    assert isinstance(got.pop("job", a_job()), Job)
    assert got == {name: value for name, value in {"body": 42, "state": "the state"}.items() if name in names}


def test_payloads_by_annotation() -> None:
    """Bytes as they are, also without annotation; JSON, models, dataclasses, typed dicts, unions, annotated types."""

    def bare(payload):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - that is the point
        return payload

    def raw(payload: bytes) -> object:
        return payload

    def anything(payload: Any) -> object:
        return payload

    def mapping(payload: dict[str, int]) -> object:
        return payload

    def model(email: Email) -> object:
        return email

    def record(order: Order) -> object:
        return order

    def typed(row: Row) -> object:
        return row

    def union(message: Annotated[Email | Sms, Field(discriminator="kind")]) -> object:
        return message

    def optional(order: Order | None) -> object:
        return order

    assert called(bare, b"\xff") == b"\xff"
    assert called(raw, b"\xff") == b"\xff"
    assert called(anything, b'[1, {"a": null}]') == [1, {"a": None}]
    assert called(mapping, b'{"a": 1}') == {"a": 1}
    assert called(model, b'{"to": "a@b"}') == Email(to="a@b")
    assert called(record, b'{"amount": 3}') == Order(3)
    assert called(typed, b'{"name": "n"}') == {"name": "n"}
    assert called(union, b'{"kind": "sms", "number": 5}') == Sms(kind="sms", number=5)
    assert called(optional, b"null") is None


@given(payload=st.binary())
def test_bytes_pass_untouched(payload: bytes) -> None:
    """A handler of bytes gets exactly what was enqueued.

    Report 79 (rq/rq#1188).
    """

    def handler(job: Job, data: bytes) -> tuple[bytes, bytes]:
        return job.payload, data

    assert called(handler, payload) == (payload, payload)


def test_a_payload_that_cannot_be_read_is_told_apart() -> None:
    """The decoder's refusal is not confused with an Unreadable that a handler raises by itself."""
    inside: list[object] = []

    def handler(job: Job, email: Email) -> None:
        inside.append(email)
        raise Unreadable("something else")

    call = bound(handler).caller()
    with pytest.raises(PayloadRefused) as refused:
        call(a_job(b"{"))
    assert inside == []
    assert isinstance(refused.value.__cause__, Unreadable)
    assert "payload" in str(refused.value)

    with pytest.raises(Unreadable) as own:
        call(a_job(b'{"to": "x"}'))
    assert not isinstance(own.value, PayloadRefused)


def test_the_state_by_name_or_by_its_type() -> None:
    """`state`, the type that the lifespan yields, or a base of it; beside a payload in any order."""

    def named(state, email: Email):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - by name alone
        return state, email.to

    def typed(email: Email, resources: Resources) -> object:
        return resources, email.to

    def base(shared: Base, job: Job, email: Email) -> object:
        return shared, email.to

    state = Resources()
    for handler in (named, typed, base):
        assert called(handler, b'{"to": "x"}', state, state_type=Resources) == (state, "x")


def test_a_state_of_a_json_type_is_asked_for_by_name() -> None:
    """A lifespan that yields a dict does not take the payload's place."""

    def handler(payload: dict[str, Any], state: dict[str, Any]) -> object:
        return payload, state

    def payload_only(payload: dict[str, Any]) -> object:
        return payload

    assert called(handler, b'{"a": 1}', {"pool": 1}, state_type=dict) == ({"a": 1}, {"pool": 1})
    assert called(payload_only, b'{"a": 1}', {"pool": 1}, state_type=dict) == {"a": 1}
    assert called(payload_only, b'{"a": 1}', {"pool": 1}, state_type=object) == {"a": 1}


def test_parameters_with_defaults_keep_them() -> None:
    """Beside a required payload, and without annotation; what follows is filled by name."""

    def beside(job: Job, email: Email, retries: int = 3) -> object:
        return email.to, retries

    def between(job: Job, client=None, payload: bytes = b"") -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001 - bare on purpose
        return client, payload

    def optional(job: Job, email: Email | None = None) -> object:
        return email

    def filled(job: Job, email: Email, sms: Sms) -> object:
        return email, sms

    def closure(job: Job, client=5) -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001 - bare on purpose
        return client

    assert called(beside, b'{"to": "x"}') == ("x", 3)
    assert called(between) == (None, b"raw")
    assert called(optional, b'{"to": "x"}') == Email(to="x")
    assert called(closure) == 5
    sms = Sms(kind="sms", number=1)
    email = Email(to="x")
    assert called(functools.partial(filled, sms=sms), b'{"to": "x"}') == (email, sms)
    assert called(functools.partial(filled, sms=sms, email=email)) == (email, sms)


class Service:
    """Callables of every kind."""

    async def __call__(self, job: Job, email: Email) -> object:
        """An async object."""
        return email.to

    async def method(self, email: Email) -> object:
        """A bound async method."""
        return email.to

    def plain(self, email: Email) -> object:
        """A bound plain method."""
        return email.to

    @staticmethod
    async def static(email: Email) -> object:
        """An async static method."""
        return email.to

    @classmethod
    def of_class(cls, email: Email) -> object:
        """A plain class method."""
        return email.to


class PlainService:
    """A callable object that runs in a thread."""

    def __call__(self, email: Email) -> object:
        """A plain object."""
        return email.to


async def with_client(client: str, job: Job, email: Email) -> object:
    """For partials."""
    return client, email.to


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as they are written: the wrapped function's signature shows."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@wrapping
async def decorated(job: Job, email: Email) -> object:
    """A decorated function, its annotations as text."""
    return email.to


@pytest.mark.parametrize(
    ("handler", "is_async", "expected"),
    [
        (Service(), True, "x"),
        (Service().method, True, "x"),
        (Service().plain, False, "x"),
        (Service.static, True, "x"),
        (Service.of_class, False, "x"),
        (PlainService(), False, "x"),
        (functools.partial(with_client, "c"), True, ("c", "x")),
        (functools.partial(with_client, client="c"), True, ("c", "x")),
        (functools.partial(functools.partial(with_client, "c")), True, ("c", "x")),
        (functools.partial(Service()), True, "x"),
        (decorated, True, "x"),
    ],
)
def test_callables_of_every_kind(handler: Callable[..., Any], is_async: bool, expected: object) -> None:
    """Objects, methods, partials and decorated functions are bound like functions, and known as async or plain."""
    made = bound(handler)
    result = made.caller()(a_job(b'{"to": "x"}'))

    assert made.is_async is is_async
    assert (run(result) if is_async else result) == expected
    assert made.name.startswith("tests.unit.test_handlers_arguments.")


def test_a_job_imported_for_the_type_checker_alone_is_known() -> None:
    """What linters recommend does not break a handler."""

    def handler(job: CheckerJob) -> object:
        return job

    handler.__annotations__["job"] = "echomq_worker.Job"

    assert isinstance(called(handler), Job)
