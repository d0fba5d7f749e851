# syntax=docker/dockerfile:1
# The daemon with the examples. An image with handlers of your own is made FROM this one: docs/running.md, Containers.

# The server of the profile `native`: Valkey with the module emq. Built in its own image, against the libraries it runs with.
FROM valkey/valkey:9 AS module
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev make
COPY native /src
RUN make -C /src OUT=/src/emq.so

FROM valkey/valkey:9 AS valkey
COPY --from=module /src/emq.so /usr/local/lib/emq.so
CMD ["valkey-server", "--loadmodule", "/usr/local/lib/emq.so"]

# The worker.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY lua ./lua
COPY native ./native
COPY echomq_worker ./echomq_worker
# Ours and every dependency as wheels, so that the last stage needs no network and no compiler.
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[cron,fast,metrics,web]'

FROM python:3.12-slim-bookworm
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'echomq-worker[cron,fast,metrics,web]' \
    && groupadd --gid 10001 worker \
    && useradd --uid 10001 --gid worker --home-dir /app --no-create-home --shell /usr/sbin/nologin worker
WORKDIR /app
COPY examples ./examples
USER 10001:10001
# What the daemon takes as the order to finish what it has in hand. It may be PID 1; where handlers leave processes behind
# give the container an init: docs/running.md, Stop.
STOPSIGNAL SIGTERM
# Whether the worker works, where ECHOMQ_HTTP says where it answers; else whether the server is there.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s --retries=3 CMD ["echomq-worker", "health"]
ENTRYPOINT ["echomq-worker"]
CMD ["--help"]
