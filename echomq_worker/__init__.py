"""A worker for EchoMQ job queues on Valkey: handlers by queue name, producing, scheduling, lanes and repeats.

Everything that a user needs is here by name, and imported when it is first asked for: a container's health command must
not pay for a worker.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from echomq_worker.admin import Admin
    from echomq_worker.admission import New
    from echomq_worker.audit import Audit, Finding
    from echomq_worker.backoff import Exponential, Fixed, Jitter
    from echomq_worker.cancel import Cancel
    from echomq_worker.connector import Connector, Wire, connect
    from echomq_worker.dead import DeadFilter
    from echomq_worker.errors import EchoMQError
    from echomq_worker.events import Event, Events
    from echomq_worker.flows import Flows, Node
    from echomq_worker.job import Job, JobCancelled
    from echomq_worker.jobs import Jobs
    from echomq_worker.lanes import Lanes
    from echomq_worker.metrics import Metrics
    from echomq_worker.pool import Pool, connect_pool
    from echomq_worker.repeat import Repeat
    from echomq_worker.report import Report
    from echomq_worker.rows import Receipt
    from echomq_worker.settings import Settings
    from echomq_worker.stalled import Stalled
    from echomq_worker.verdict import Delay, Done, Reject, Retry
    from echomq_worker.worker import Worker

_HOMES = {
    "Admin": "admin",
    "Audit": "audit",
    "Finding": "audit",
    "Exponential": "backoff",
    "Fixed": "backoff",
    "Jitter": "backoff",
    "Cancel": "cancel",
    "Connector": "connector",
    "Wire": "connector",
    "connect": "connector",
    "DeadFilter": "dead",
    "EchoMQError": "errors",
    "Event": "events",
    "Events": "events",
    "Flows": "flows",
    "Node": "flows",
    "Job": "job",
    "JobCancelled": "job",
    "Jobs": "jobs",
    "New": "admission",
    "Lanes": "lanes",
    "Metrics": "metrics",
    "Pool": "pool",
    "connect_pool": "pool",
    "Repeat": "repeat",
    "Receipt": "rows",
    "Settings": "settings",
    "Stalled": "stalled",
    "Delay": "verdict",
    "Done": "verdict",
    "Reject": "verdict",
    "Retry": "verdict",
    "Report": "report",
    "Worker": "worker",
}

__all__ = [
    "Admin",
    "Audit",
    "Cancel",
    "Connector",
    "DeadFilter",
    "Delay",
    "Done",
    "EchoMQError",
    "Event",
    "Events",
    "Exponential",
    "Finding",
    "Fixed",
    "Flows",
    "Jitter",
    "Job",
    "JobCancelled",
    "Jobs",
    "Lanes",
    "Metrics",
    "New",
    "Node",
    "Pool",
    "Receipt",
    "Reject",
    "Repeat",
    "Report",
    "Retry",
    "Settings",
    "Stalled",
    "Wire",
    "Worker",
    "connect",
    "connect_pool",
]


def __getattr__(name: str) -> object:
    """The public name `name`, from the module that has it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
