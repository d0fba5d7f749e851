"""The settings: the only reader of the environment (`ECHOMQ_*`), and the table that docs/settings.md repeats.

Source: protocol section 8 (the defaults), user-needs 92 and 93 (no silent localhost, one line for a bad value), 36
(a lease below two beats is refused at load). A flag of the command line wins over the environment, the environment
over the default; what a handler sets for itself wins over all three, in the worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from echomq_worker import bounds
from echomq_worker.bounds import DAY_MS, Bounds
from echomq_worker.errors import ConfigError
from echomq_worker.hostport import FORM, parse_hostport, show_hostport
from echomq_worker.options import Limits, Options

PREFIX = "ECHOMQ_"
URL_FORMS = "redis://host:6379/0, rediss://… or unix:///path"
_SHOWN_CHARACTERS = 60


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _wire(value: object) -> object:
    return _lower(str(value) if isinstance(value, int) else value)


def _listens(value: str | None) -> str | None:
    return None if value is None else show_hostport(*parse_hostport(value))


def _within(allowed: Bounds, description: str) -> Any:
    return Field(ge=allowed.least, le=allowed.most, description=description)


class Settings(BaseSettings):
    """Every setting of a worker, frozen. Read from `ECHOMQ_<NAME>` when made, not when imported; arguments win.

    Durations are integer milliseconds. Raises ConfigError: one line with the variable's name, the value (unless it is
    a secret) and what was expected. An empty variable counts as unset.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    url: Annotated[SecretStr | None, Field(description="The Valkey to work on; required, there is no default.")] = None
    wire_version: Annotated[
        str,
        Field(min_length=1, max_length=64, description="The wire version that the deployment's fence must hold."),
    ] = "echomq:3.0.0"
    wire: Annotated[
        Literal["4", "6", "auto"],
        BeforeValidator(_wire),
        Field(description="4: scripts; 6: commands of the module emq; auto: commands where the server has them."),
    ] = "4"
    concurrency: Annotated[int, _within(bounds.CONCURRENCY, "Jobs of one queue that one process runs at a time.")] = 10
    prefetch: Annotated[
        int, _within(bounds.PREFETCH, "Jobs of one queue that one process claims beyond its free slots.")
    ] = 0
    lease_ms: Annotated[
        int,
        _within(bounds.LEASE_MS, "How long a claim holds a job before others may take it; kept by us."),
    ] = 30_000
    beat_ms: Annotated[
        int, Field(ge=1, le=DAY_MS, description="Recovery and promote run this often; the longest park of a consumer.")
    ] = 1_000
    tick_ms: Annotated[int, Field(ge=1, le=DAY_MS, description="The Pump looks for due repeats this often.")] = 1_000
    pump: Annotated[bool, Field(description="Run one Pump per queue: repeats, due jobs.")] = True
    events: Annotated[bool, Field(description="Publish what becomes of jobs on the channel of their queue.")] = True
    promote_batch: Annotated[int, Field(ge=1, le=1_000, description="Due jobs released by one call of promote.")] = 100
    max_attempts: Annotated[int, _within(bounds.MAX_ATTEMPTS, "Failed runs after which a job is dead.")] = 3
    retry_delay_ms: Annotated[int, _within(bounds.RETRY_DELAY_MS, "The wait before a failed job runs again.")] = 1_000
    max_crashes: Annotated[
        int, Field(ge=3, le=1_000, description="Claims in a row that never ended after which a job is dead.")
    ] = 5
    dead_max_age_ms: Annotated[
        int | None,
        Field(ge=0, le=3_650 * DAY_MS, description="The Pump deletes dead jobs minted longer ago; unset: never."),
    ] = None
    dead_max_count: Annotated[
        int | None,
        Field(ge=0, le=1_000_000_000, description="The Pump deletes the oldest dead jobs above it; unset: none."),
    ] = None
    stalled: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000,
            description="Recovery counts lost leases and buries a job at this one; unset: it counts none.",
        ),
    ] = None
    blocked_ms: Annotated[
        int,
        Field(ge=0, le=DAY_MS, description="An event loop that is blocked for longer is warned about; 0: never."),
    ] = 1_000
    grace_ms: Annotated[
        int, Field(ge=0, le=DAY_MS, description="How long running jobs may go on after the first signal.")
    ] = 25_000
    connect_timeout_ms: Annotated[int, _within(bounds.ANSWER_MS, "The limit for making a connection.")] = 5_000
    command_timeout_ms: Annotated[int, _within(bounds.ANSWER_MS, "The limit for the answer to one command.")] = 5_000
    pool_size: Annotated[
        int, _within(bounds.POOL_SIZE, "Connections of a pool of producers, such as enqueue --from-file.")
    ] = 4
    http: Annotated[
        str | None,
        AfterValidator(_listens),
        Field(
            description="Answer /livez, /readyz and /metrics there; unset: nowhere. Needs the extras web and metrics."
        ),
    ] = None
    node_id: Annotated[
        int | None,
        Field(ge=0, le=1_023, description="The node part of the ids that the Pump makes; random when unset."),
    ] = None
    web_token: Annotated[
        SecretStr | None, Field(description="The token that the dashboard asks for: 16 characters or more.")
    ] = None
    web_user: Annotated[
        SecretStr | None, Field(description="The login that the dashboard asks for: name:password.")
    ] = None
    log_format: Annotated[
        Literal["auto", "console", "json"],
        BeforeValidator(_lower),
        Field(description="auto: console on a terminal, JSON elsewhere."),
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(_lower),
        Field(description="The lowest level that is logged; the start of a job is debug."),
    ] = "info"

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            made = handler(data)
        except ValidationError as error:
            raise ConfigError("; ".join(_line(data, detail) for detail in error.errors())) from None
        if made.lease_ms < 2 * made.beat_ms:
            raise ConfigError(
                f"{_where(data, 'lease_ms')}={made.lease_ms}: expected at least two beats "
                f"(2 x {made.beat_ms} ms, {variable('beat_ms')})"
            )
        return made

    @property
    def limits(self) -> Limits:
        """The numbers in force for a handler that sets none of its own."""
        return Limits(
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            max_attempts=self.max_attempts,
            retry=self.retry_delay_ms,
            lease_ms=self.lease_ms,
        )

    def limits_of(self, options: Options) -> Limits:
        """The numbers in force for a handler. Raises ConfigError where its lease is too short for the beat."""
        limits = options.over(self.limits)
        if limits.lease_ms < 2 * self.beat_ms:
            raise ConfigError(
                f"handler of {options.queue}: lease_ms={limits.lease_ms}: expected at least two beats "
                f"(2 x {self.beat_ms} ms)"
            )
        return limits

    def require_url(self) -> str:
        """The server's URL with its password. Raises ConfigError naming the variable when there is none."""
        if self.url is None or not self.url.get_secret_value().strip():
            raise ConfigError(f"{variable('url')} is not set: expected {URL_FORMS}; or give --url")
        return self.url.get_secret_value().strip()


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """The settings with `flags` (setting name to value, None = not given) over the environment. Raises ConfigError."""
    given: dict[str, Any] = {name: value for name, value in (flags or {}).items() if value is not None}
    return Settings(**given)


def variable(name: str) -> str:
    """The environment variable of a setting: `beat_ms` is `ECHOMQ_BEAT_MS`."""
    return f"{PREFIX}{name.upper()}"


def effective(settings: Settings) -> dict[str, object]:
    """Every setting with the value in force, for the line at start; passwords masked."""
    from echomq_worker.address import mask

    values: dict[str, object] = dict(settings)
    values["url"] = None if settings.url is None else mask(settings.url.get_secret_value())
    for name in ("web_token", "web_user"):
        values[name] = None if values[name] is None else "***"
    return values


def unknown_variables(environ: Iterable[str] | None = None) -> list[str]:
    """One warning per `ECHOMQ_*` name that is no setting, with the nearest one that is. `environ` holds names."""
    known = {name.upper() for name in Settings.model_fields}
    warnings = []
    for name in sorted(os.environ if environ is None else environ):
        if name.upper().startswith(PREFIX) and name.upper().removeprefix(PREFIX) not in known:
            near = _near(name.upper().removeprefix(PREFIX), known)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else "it is ignored"
            warnings.append(f"{_shown(name, quotes=False)} is not a setting: {hint}")
    return warnings


def _near(name: str, names: Iterable[str]) -> list[str]:
    """The name that is most like it, if one is."""
    # Only who has mistyped something needs it.
    import difflib

    return difflib.get_close_matches(name, list(names), n=1)


def _line(data: object, detail: ErrorDetails) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    field = Settings.model_fields.get(name)
    if field is None:
        near = _near(name, Settings.model_fields)
        return f"{name}: no such setting" + (f", did you mean {near[0]}?" if near else "")
    raw = data.get(name) if isinstance(data, dict) else None
    shown = "" if name in {"url", "web_token", "web_user"} else f"={_shown(raw)}"
    return f"{_where(data, name)}{shown}: expected {expected(name, field)}"


def _where(data: object, name: str) -> str:
    """The variable when the value came from there, else the setting and the variable that would set it."""
    value = data.get(name) if isinstance(data, dict) else None
    from_environment = isinstance(value, str) and any(
        key.upper() == variable(name) and text == value for key, text in os.environ.items()
    )
    return variable(name) if from_environment else f"{name} ({variable(name)})"


def expected(name: str, field: FieldInfo) -> str:
    """What a setting takes, in words: `an integer from 1 to 86400000 (milliseconds)`."""
    if name == "http":
        return FORM
    kinds = [kind for kind in (get_args(field.annotation) or (field.annotation,)) if kind is not type(None)]
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(str(kind) for kind in kinds)
    if kinds == [bool]:
        return "true or false"
    if kinds == [SecretStr]:
        return URL_FORMS if name == "url" else "a secret text"
    if kinds == [int]:
        marks: list[Any] = field.metadata
        (least,) = [mark.ge for mark in marks if hasattr(mark, "ge")]
        (most,) = [mark.le for mark in marks if hasattr(mark, "le")]
        return str(Bounds(least, most, ms=name.endswith("_ms")))
    return "a text of 1 to 64 characters"


def _shown(value: object, *, quotes: bool = True) -> str:
    text = ascii(value) if quotes else ascii(value)[1:-1]
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
