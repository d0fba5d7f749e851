"""What is in the image, and the compose file's dashboard. What they run is tried in tests/edges/test_container.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[2]


def test_the_dashboard_asks_for_a_token_that_the_user_gives() -> None:
    """Only with its profile, only for this machine, on the port on which it listens; no token stands in the file."""
    dashboard = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]["dashboard"]
    assert (dashboard["profiles"], dashboard["command"]) == (["dashboard"], ["web", "--http", "0.0.0.0:8080"])
    assert (dashboard["environment"]["ECHOMQ_WEB_TOKEN"][:2], dashboard["ports"]) == ("${", ["127.0.0.1:8080:8080"])


def test_the_image_has_what_a_daemon_may_need() -> None:
    """The same extras are built and installed, and all of them but those that are for developing or a choice."""
    project = (PROJECT / "pyproject.toml").read_text()
    (every,) = re.findall(r'^all = \["echomq-worker\[(.*)\]"\]$', project, re.MULTILINE)
    dockerfile = (PROJECT / "Dockerfile").read_text()
    built, installed = (set(found.split(",")) for found in re.findall(r"\[([a-z,]+)\]'", dockerfile))
    assert built == installed == set(every.split(",")) - {"embedded", "otel", "reload"}
