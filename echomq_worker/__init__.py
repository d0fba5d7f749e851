"""A worker for EchoMQ job queues on Valkey."""

__version__ = "0.1.0"
