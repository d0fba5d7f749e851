"""Probes and metrics of a worker: what Kubernetes, Prometheus and an autoscaler ask. Made only where `--http` is given.

- `instruments`: every metric as a value; `snapshot`: their numbers at one moment, which can be added up and sent.
- `meter`: what is counted as it happens; `depths`: what is read from the server; `probe`: both, for one process.
- `channel` and `fleet`: a process of several, and the supervisor that answers for all of them.
- `exposition`: the text that Prometheus reads; `http`: the port.
"""
