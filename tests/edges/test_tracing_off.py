"""Tracing while it is off, or not installed.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040.
"""

from __future__ import annotations

import subprocess
import sys


def test_what_is_off_is_not_imported() -> None:
    """Neither the worker nor a producer nor the command line needs OpenTelemetry, or brings it (redis-py may)."""
    code = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "import echomq_worker, echomq_worker.worker, echomq_worker.jobs, echomq_worker.cli.app\n"
        "ours = [name for name in sys.modules if name.startswith('echomq_worker')]\n"
        "print([name for name in ours if name.split('.')[-1] in {'telemetry', 'tracing', 'spans', 'traced'}])"
    )

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout == "[]\n"


def test_without_the_extra_it_is_named() -> None:
    """One line that says what to install."""
    code = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "from echomq_worker.errors import ConfigError\n"
        "try:\n    import echomq_worker.tracing\nexcept ConfigError as error:\n    print(error)"
    )

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout == "tracing: OpenTelemetry is not installed, expected pip install 'echomq-worker[otel]'\n"
