"""`python -m echomq_worker` is `echomq-worker`."""

from __future__ import annotations

import sys

from echomq_worker.cli import main

if __name__ == "__main__":
    sys.exit(main())
