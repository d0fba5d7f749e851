"""The peers: other job queues with a Python worker, each in a virtual environment of its own, beside ours."""
