"""Fixtures for tests of the verbs' edges: one queue's state, and a connector."""

from __future__ import annotations

from tests.scripts.conftest import control, flow, plain, queue, wire

__all__ = ["control", "flow", "plain", "queue", "wire"]
