"""What to do next, where an error itself does not say what was expected: for whoever is on call.

Source: issue "Made for the people who run it" (errors that name the next step).
"""

from __future__ import annotations

from echomq_worker.errors import (
    AuthenticationFailed,
    CommandTimeout,
    ConnectionLost,
    EchoMQError,
    FenceRefused,
    Unreachable,
)

_RIGHTS = "echomq-worker acl prints the rights that one needs"
# By how the text begins: refusals of scripts, errors of the server.
_TEXTS: tuple[tuple[str, str], ...] = (
    ("EMQLOCK job is locked", "a worker has it in hand: job cancel asks for its end, --force takes it all the same"),
    ("EMQSTATE not dead", "job show says where it is; what waits or runs needs no new life"),
    ("EMQSTATE children still out", "flow show says which; --force does not wait for them"),
    ("EMQSTATE job is a child of a flow", "its parent waits for it; --force reports it as dead to the parent"),
    ("EMQSTATE flow row names another parent", "the id is taken: expected ids that nothing else has"),
    ("EMQSTATE flow row has other children", "the id is taken: expected ids that nothing else has"),
    ("NOPERM", f"the user of the URL may not do that; {_RIGHTS}"),
    ("OOM", "the server is at maxmemory: make room there, echomq-worker dead trim deletes dead jobs"),
    ("READONLY", "a replica? expected the URL of the primary, or redis+sentinel://"),
    ("LOADING", "the server reads its data after a start: try again"),
    ("MASTERDOWN", "a replica without its primary: expected the URL of the primary, or redis+sentinel://"),
    ("CLUSTERDOWN", "CLUSTER INFO on a node says why; try again when cluster_state is ok"),
    ("WRONGTYPE", "another program writes keys of this name; queue audit lists what does not fit"),
)
_KINDS: tuple[tuple[type[EchoMQError], str], ...] = (
    (FenceRefused, "another server was meant? if not, ECHOMQ_WIRE_VERSION is the version to expect"),
    (AuthenticationFailed, f"the URL has user and password; {_RIGHTS}"),
    (Unreachable, "is a server running there? ECHOMQ_URL or --url says where; run --embedded brings one"),
    (CommandTimeout, "it may have been done: look before it is asked again; ECHOMQ_COMMAND_TIMEOUT_MS is the limit"),
    (ConnectionLost, "it may have been done: look before it is asked again"),
)


def next_step(error: EchoMQError) -> str:
    """` (what to do)`, or an empty text where the error says it."""
    text = str(error)
    if isinstance(error, Unreachable) and "CERTIFICATE_VERIFY_FAILED" in text:
        return " (ssl_ca_certs=FILE in the URL names whom to trust: docs/topologies.md, TLS)"
    for begins, hint in _TEXTS:
        if text.startswith(begins):
            return f" ({hint})"
    return next((f" ({hint})" for kind, hint in _KINDS if isinstance(error, kind)), "")


def with_next_step(refusal: str) -> str:
    """The text of a script's refusal, and what to do."""
    return next((f"{refusal} ({hint})" for begins, hint in _TEXTS if refusal.startswith(begins)), refusal)
