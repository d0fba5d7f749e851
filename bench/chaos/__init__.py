"""Faults at random against real workers on a real server, and at the end an account of every id.

Source: issue "The five promises, kept under every fault" (a fault bench that users can run too). `docs/chaos.md` says
how to run it and how to read what it prints. `plan` and the `account` modules are values without I/O; `lab` owns what
runs. It uses the proxy and the server of `tests/support`: both folders are in the repository only, not in the package.
"""
