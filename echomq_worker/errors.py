"""Every error this package raises: one root, a class per situation.

Source: protocol section 4 (a script's refusal starts with its class: `EMQKIND`, `EMQSTALE`, ...), section 3 (the
fence). Transport trouble is told apart by what the caller may assume: whether the command was never sent, was refused
by the server with nothing done, or was sent and its reply is unknown. Texts never carry payloads or passwords.
"""

from __future__ import annotations

from typing import Any, ClassVar

# The first words of the server's replies to who has not logged in, or has no right to a command.
LOGIN_REFUSALS = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})
_SHOWN_CHARACTERS = 60
_SHOWN_BITS = 128
_BASE: Any = BaseException
_PLAIN = frozenset({str, int, float, bool, type(None)})


class EchoMQError(Exception):
    """Root of all errors of this package: catch it to catch every one of them."""


class InvalidId(EchoMQError, ValueError):
    """An id that is not a branded id (14 bytes: three letters A-Z, 11 of base62, at most 2^63-1). Nothing was sent."""


class InvalidQueueName(EchoMQError, ValueError):
    """A queue name outside `[A-Za-z0-9._-]{1,128}`, or `emq`. Nothing was sent."""


class InvalidArgument(EchoMQError, ValueError):
    """An argument outside the guards of the seeds, such as a negative delay. Nothing was sent."""


class ConfigError(EchoMQError):
    """A setting, an option or the use of an object is wrong; the command line exits with 2."""


class NoTwin(ConfigError):
    """On wire 6 a verb was called that only a script can do; nothing was sent. `verb` names the script."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    def __str__(self) -> str:
        return f"wire 6: no command for {self.verb}, a script alone: expected ECHOMQ_WIRE=auto, or 4"


class BuildFailed(EchoMQError):
    """The compiler did not take the module's sources."""


class NotBuilt(EchoMQError):
    """The module was not built yet, or of other sources."""


class WireError(EchoMQError):
    """The transport failed. Whether to send again is the caller's decision, verb by verb."""


class Unreachable(WireError):
    """No connection could be made; nothing was sent."""


class ConnectionLost(WireError):
    """The connection went away after the command was sent: it may have run, its reply is unknown."""


class CommandTimeout(ConnectionLost):
    """No reply within the command timeout: the command may have run, or may still run."""


class Unavailable(WireError):
    """The server answered that it cannot serve now (LOADING, READONLY, OOM, ...); nothing was done.

    The argument is the server's error text; `code` is its first word.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @property
    def code(self) -> str:
        """The first word of the server's text, such as `LOADING`; empty when there is none."""
        return _first_word(str(self))


class FenceRefused(EchoMQError):
    """The deployment's wire version is not the expected one; fatal, the command line exits with 4.

    `expected` and `found` are the two versions as text. Nothing but the fence key was read, nothing was written.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"wire version fence {{emq}}:version: expected {shown(self.expected)}, the server has {shown(self.found)}"
        )


class AuthenticationFailed(EchoMQError):
    """The server refused the credentials at connect (NOAUTH, WRONGPASS, NOPERM). A worker that runs waits, and tries
    ten times.
    """


class ServerError(EchoMQError):
    """Any other error reply. The argument is the server's error text; `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @property
    def code(self) -> str:
        """The first word of the server's text, such as `WRONGTYPE`; empty when there is none."""
        return _first_word(str(self))


class LifespanLate(EchoMQError):
    """A lifespan that had not closed when what was left of the grace was over: cut short, or left behind."""


class ScriptMissing(EchoMQError):
    """A script, an include or the folder of scripts is not there."""


class ScriptContract(EchoMQError):
    """A script's header cannot be read, or a call does not have the keys and arguments that its header states."""


class Refused(EchoMQError):
    """A script refused the call and wrote nothing. `code` is the refusal's class, the first word of its text."""

    code: ClassVar[str] = "EMQ"


class KindRefused(Refused):
    """`EMQKIND`: the id is not of the namespace that the verb takes."""

    code: ClassVar[str] = "EMQKIND"


class Stale(Refused):
    """`EMQSTALE`: the token is not the row's any more; somebody else has had the job since."""

    code: ClassVar[str] = "EMQSTALE"


class Gone(Stale):
    """`EMQSTALE job gone`: the row does not exist any more."""


class StateRefused(Refused):
    """`EMQSTATE`: the job or the queue is not in a state that the verb takes."""

    code: ClassVar[str] = "EMQSTATE"


class LaneNotServed(StateRefused):
    """`EMQSTATE … lane not native`, on wire 6 alone: the command does not work on jobs of lanes, the script does."""


class Locked(Refused):
    """`EMQLOCK`: a worker holds the job."""

    code: ClassVar[str] = "EMQLOCK"


class RateLimited(Refused):
    """`EMQRATE`: the queue is at its concurrency ceiling or its rate."""

    code: ClassVar[str] = "EMQRATE"


class Unreadable(EchoMQError):
    """A payload is missing, or cannot be decoded or validated. The text never holds any of the payload's content."""


def is_of_the_server(error: BaseException | None) -> bool:
    """Whether an error says all there is to know: the server, or the way to it, is in trouble. A trace of who met it
    adds nothing.
    """
    # Read off the type: an exception of a handler's may lie about its `__class__`, or raise when it is asked.
    kind = type(error)
    if issubclass(kind, ServerError):
        said = _BASE.args.__get__(error)
        return bool(said) and type(said[0]) is str and _first_word(said[0]) in LOGIN_REFUSALS
    return issubclass(kind, (WireError, AuthenticationFailed, FenceRefused))


_REFUSALS: dict[str, type[Refused]] = {
    refused.code: refused for refused in (KindRefused, Stale, StateRefused, Locked, RateLimited)
}
_GONE = "EMQSTALE job gone"


def refusal(text: str) -> Refused | None:
    """The refusal that an error reply's text stands for, or None when it is no refusal of a script.

    The class is the first word (protocol section 4); `EMQSTALE job gone` is the more specific `Gone` (the seeds match
    it first, by prefix). The error's text is the reply's.
    """
    if text.startswith(_GONE):
        return Gone(text)
    refused = _REFUSALS.get(_first_word(text))
    return None if refused is None else refused(text)


def shown(value: object) -> str:
    """A refused value as an error's text may show it: printable ASCII, one line, at most 80 characters. Never raises.

    Texts and numbers are shown, cut; anything else by its type alone. Not for payloads or secrets.
    """
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"of {value.bit_length()} bits"
    if type(value) not in _PLAIN:
        return f"of type {_cut(ascii(type(value).__name__)[1:-1])}"
    # Cut before it is escaped: the text may have many megabytes.
    return _cut(ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _first_word(text: str) -> str:
    return text.split(maxsplit=1)[0] if text.strip() else ""
