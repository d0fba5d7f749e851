"""Conformance: the protocol's own scenarios, runnable against any Valkey or Redis of version 7 or above.

Source: issue "Every control" (the conformance runner). A scenario is a name, a one-sentence contract and its own
checks; it fails where the server, a script or a foreign runtime's twin does something else.
"""

from echomq_worker.conformance.bench import Target
from echomq_worker.conformance.runner import Outcome, Scenario, chosen, run, scenarios

__all__ = ["Outcome", "Scenario", "Target", "chosen", "run", "scenarios"]
