"""Every metric that a worker exports, as values: what is counted, by which labels. docs/metrics.md is made of them.

Source: issue "Made for the people who run it" (Probes and metrics in the worker itself).
"""

from __future__ import annotations

from types import MappingProxyType

from echomq_worker.probes.snapshot import Instrument

OTHER_LANES = "(other)"
"""The lane that stands for all that are not among the largest; no lane of a job can have this name in brackets."""

OUTCOMES = MappingProxyType(
    {
        "done": "completed",
        "scheduled": "retried",
        "delayed": "delayed",
        "dead": "dead",
        "buried": "buried",
        "lost": "lost",
        "stale": "stale",
        "gone": "gone",
        "unknown": "refused",
        "released": "released",
        "disowned": "disowned",
        "left": "left",
    }
)
"""What the journal counts, and the outcome that it is called here."""

_MOMENTS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
RUNS_S = (*_MOMENTS, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
WAITS_S = (*_MOMENTS, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)
LAGS_S = (*_MOMENTS, 5.0)

STARTED = Instrument("echomq_jobs_started_total", "counter", "Handlers called, once per job and claim.", ("queue",))
JOBS = Instrument(
    "echomq_jobs_total",
    "counter",
    "What became of jobs here, as the server has answered. Of runs: completed, retried, delayed, dead. Of verdicts "
    "that came too late: stale, gone, refused. Without one: lost (the lease), buried (by a claim or the sweep), and at "
    "a stop released, disowned, left.",
    ("queue", "outcome"),
)
STALLED = Instrument(
    "echomq_jobs_stalled_total", "counter", "Jobs that the counting sweep gave back, whoever had them.", ("queue",)
)
ASKED = Instrument(
    "echomq_cancel_requests_total", "counter", "Jobs in hand whose end was asked for from outside.", ("queue",)
)
DURATION = Instrument(
    "echomq_job_duration_seconds",
    "histogram",
    "How long handlers ran whose verdict was answered.",
    ("queue",),
    bounds=RUNS_S,
)
WAIT = Instrument(
    "echomq_job_wait_seconds",
    "histogram",
    "From the mint of a job's id to the first call of its handler: the time in the queue, a delay that was asked for "
    "included. Later attempts are not counted.",
    ("queue",),
    bounds=WAITS_S,
)
RUNNING = Instrument("echomq_jobs_running", "gauge", "Handlers that have begun and not ended.", ("queue",))
SLOTS = Instrument("echomq_slots", "gauge", "Jobs that may run at a time.", ("queue",))
UNANSWERED = Instrument(
    "echomq_verdicts_unanswered", "gauge", "Verdicts that the server has not answered yet.", ("queue",)
)
RESENT = Instrument(
    "echomq_verdicts_resent_total", "counter", "Verdicts that had no answer and were kept to be sent again.", ("queue",)
)
HELD = Instrument("echomq_leases_held", "gauge", "Jobs whose lease is kept here.")
EXTENSIONS = Instrument("echomq_lease_extensions_total", "counter", "Leases extended, each time that one was.")
BEATS = Instrument("echomq_beats_total", "counter", "Good passes of the loops of a queue.", ("queue", "loop"))
READY = Instrument("echomq_ready", "gauge", "Processes that claim and work: what /readyz says, as a number.")
PROCESSES = Instrument("echomq_processes", "gauge", "Worker processes behind this port that answer.")
DEGRADED = Instrument("echomq_degraded", "gauge", "Processes with a loop that cannot do its beat.")
OUTAGES = Instrument("echomq_outages_total", "counter", "Times that a process became degraded.")
DOWNTIME = Instrument("echomq_degraded_seconds_total", "counter", "Time that processes were degraded, now included.")
LAG = Instrument(
    "echomq_event_loop_lag_seconds",
    "histogram",
    "How late the event loop called what was due, four looks a second.",
    bounds=LAGS_S,
)
BLOCKED = Instrument(
    "echomq_event_loop_blocked_total",
    "counter",
    "Times that the event loop was blocked for longer than ECHOMQ_BLOCKED_MS.",
)
CONNECTIONS = Instrument(
    "echomq_connections", "gauge", "Connections that stand: commands, parking, cancel, leases.", ("purpose",)
)
CONNECTS = Instrument("echomq_connects_total", "counter", "Connections for commands that were made.")
UNPUBLISHED = Instrument(
    "echomq_events_dropped_total", "counter", "Events of a queue that could not be published.", ("queue",)
)
CPU = Instrument("echomq_process_cpu_seconds_total", "counter", "CPU time of the worker processes, user and system.")
RESIDENT = Instrument("echomq_process_resident_bytes", "gauge", "Memory of the worker processes.")

INFO = Instrument("echomq_worker_info", "gauge", "1, with the versions.", ("version", "wire_version"), scope="shared")
SERVER = Instrument("echomq_server_up", "gauge", "Whether the queues could be read just now.", scope="shared")
QUEUE_JOBS = Instrument(
    "echomq_queue_jobs",
    "gauge",
    "Jobs by state: pending (flat, without lanes), active, scheduled, dead.",
    ("queue", "state"),
    scope="shared",
)
QUEUE_READY = Instrument(
    "echomq_queue_ready_jobs",
    "gauge",
    "Jobs that wait to be claimed: pending and all lanes. What an autoscaler reads.",
    ("queue",),
    scope="shared",
)
OLDEST = Instrument(
    "echomq_queue_oldest_pending_age_seconds",
    "gauge",
    "Since the id of the oldest pending job was minted, lanes included; 0 where none is.",
    ("queue",),
    scope="shared",
)
EXPIRED = Instrument(
    "echomq_queue_expired_leases",
    "gauge",
    "Jobs whose lease is over and that nobody has put back.",
    ("queue",),
    scope="shared",
)
PAUSED = Instrument("echomq_queue_paused", "gauge", "1 where the whole queue is paused.", ("queue",), scope="shared")
REPEATS = Instrument("echomq_queue_repeats", "gauge", "Registered repeats.", ("queue",), scope="shared")
LANES = Instrument(
    "echomq_queue_lanes", "gauge", "Lanes with jobs that wait or are in hand.", ("queue",), scope="shared"
)
LANE_JOBS = Instrument(
    "echomq_lane_jobs",
    "gauge",
    f"Jobs of the 20 largest lanes by state: pending, active. All others together are the lane {OTHER_LANES}.",
    ("queue", "lane", "state"),
    scope="shared",
)
COMPLETED = Instrument(
    "echomq_queue_completed_total",
    "counter",
    "Jobs completed since the queue began, by all workers.",
    ("queue",),
    scope="shared",
)
DIED = Instrument(
    "echomq_queue_died_total",
    "counter",
    "Jobs that died since the queue began, with all workers.",
    ("queue",),
    scope="shared",
)

INSTRUMENTS: tuple[Instrument, ...] = (
    STARTED,
    JOBS,
    STALLED,
    ASKED,
    DURATION,
    WAIT,
    RUNNING,
    SLOTS,
    UNANSWERED,
    RESENT,
    HELD,
    EXTENSIONS,
    BEATS,
    READY,
    PROCESSES,
    DEGRADED,
    OUTAGES,
    DOWNTIME,
    LAG,
    BLOCKED,
    CONNECTIONS,
    CONNECTS,
    UNPUBLISHED,
    CPU,
    RESIDENT,
    INFO,
    SERVER,
    QUEUE_JOBS,
    QUEUE_READY,
    OLDEST,
    EXPIRED,
    PAUSED,
    REPEATS,
    LANES,
    LANE_JOBS,
    COMPLETED,
    DIED,
)
SHARED: tuple[Instrument, ...] = tuple(one for one in INSTRUMENTS if one.scope == "shared")
OWN: tuple[Instrument, ...] = tuple(one for one in INSTRUMENTS if one.scope == "process")
LASTING: tuple[Instrument, ...] = tuple(one for one in OWN if one.kind != "gauge")
"""What a process that has ended leaves behind in the sum of all."""
