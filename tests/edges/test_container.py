"""The image and the compose file, as far as they can be tried without a container engine.

Source: issue "A worker that runs jobs", Container. What the two files say is read and checked; what they would run
is run here: the commands of producer, worker and health check, and the daemon as PID 1 of a namespace of its own.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis.asyncio import Redis

from tests.support.keyspace import keyspace_of
from tests.support.process import WorkerProcess, run_worker
from tests.support.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000}

# ---------------------------------------------------------------------------------------------- compose

WORD = re.compile(r"\S+")
DURATION = re.compile(r"(\d+(ms|s|m))+")
IMAGE = re.compile(r"[a-z0-9./-]+:[a-z0-9.-]+")
HEALTHCHECK: dict[str, Any] = {
    "test": [WORD],
    "interval": DURATION,
    "timeout": DURATION,
    "retries": int,
    "disable": bool,
}
# The part of the compose specification that is used: a key that is not here is a slip, or belongs here first.
SERVICE: dict[str, Any] = {
    "image": IMAGE,
    "build": {"context": re.compile(r"\."), "target": WORD},
    "profiles": [WORD],
    "command": [WORD],
    "environment": {"*": str},
    "volumes": [re.compile(r"[a-z-]+:/\S+")],
    "ports": [re.compile(r"127\.0\.0\.1:\d+:\d+")],
    "depends_on": {"*": {"condition": re.compile("service_(started|healthy|completed_successfully)")}},
    "healthcheck": HEALTHCHECK,
    "stop_grace_period": DURATION,
    "init": bool,
    "restart": re.compile("no|always|on-failure|unless-stopped"),
}
COMPOSE: dict[str, Any] = {"name": WORD, "services": {"*": SERVICE}, "volumes": {"*": type(None)}}


def misfits(value: object, shape: Any, where: str) -> list[str]:
    """Where `value` departs from `shape`: a type, a pattern, a list of one shape, keys of a dict ("*": any key)."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where}: {value!r}, expected keys and values"]
        unknown = [
            f"{where}.{key}: not a key of compose that is used here" for key in value if not {key, "*"} & set(shape)
        ]
        known = ((key, shape.get(key, shape.get("*"))) for key in value)
        return unknown + [
            line for key, inner in known if inner for line in misfits(value[key], inner, f"{where}.{key}")
        ]
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: {value!r}, expected a list"]
        return [line for index, item in enumerate(value) for line in misfits(item, shape[0], f"{where}[{index}]")]
    if isinstance(shape, re.Pattern):
        fits = isinstance(value, str) and shape.fullmatch(value)
        return [] if fits else [f"{where}: {value!r}, expected {shape.pattern}"]
    return [] if isinstance(value, shape) else [f"{where}: {value!r}, expected {shape.__name__}"]


def milliseconds(duration: str) -> int:
    """A duration of compose, such as 1m30s."""
    return sum(int(number) * UNITS_MS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m)", duration))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file."""
    found: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    return found


def test_the_compose_file_has_the_shape_of_one() -> None:
    """Every key is one that compose knows, with a value of its kind; what a service refers to exists."""
    compose = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
    for service in compose["services"].values():
        # The short form, a folder alone.
        if isinstance(service.get("build"), str):
            service["build"] = {"context": service["build"]}
    assert misfits(compose, COMPOSE, "compose") == []
    for service in compose["services"].values():
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "test" in compose["services"][other]["healthcheck"]


def test_the_shape_can_be_missed() -> None:
    """A misspelt key, a number for a string and a string for a list are told with their place."""
    wrong = {"services": {"w": {"comand": ["x"], "stop_grace_period": 40, "command": "run"}}}
    assert misfits(wrong, COMPOSE, "compose") == [
        "compose.services.w.comand: not a key of compose that is used here",
        f"compose.services.w.stop_grace_period: 40, expected {DURATION.pattern}",
        "compose.services.w.command: 'run', expected a list",
    ]
    assert milliseconds("1m30s") == 90_000


def test_no_image_floats(services: dict[str, Any]) -> None:
    """Every image has a tag, none is `latest`."""
    assert [service["image"] for service in services.values() if service["image"].endswith(":latest")] == []


def test_valkey_keeps_what_it_is_given(services: dict[str, Any]) -> None:
    """Valkey 9, with an append-only file on a volume; a full server refuses instead of evicting jobs."""
    valkey = services["valkey"]
    assert valkey["image"] == "valkey/valkey:9"
    options = dict(zip(valkey["command"][1::2], valkey["command"][2::2], strict=True))
    assert options == {"--appendonly": "yes", "--maxmemory-policy": "noeviction"}
    assert [volume.split(":")[1] for volume in valkey["volumes"]] == ["/data"]


def test_the_worker_scales_and_has_time_to_end(services: dict[str, Any]) -> None:
    """Nothing ties it to one container, and it is killed only after its grace and some time to hand over."""
    worker = services["worker"]
    assert not {"container_name", "ports", "hostname"} & set(worker)
    grace_ms = int(worker["environment"]["ECHOMQ_GRACE_MS"])
    assert milliseconds(worker["stop_grace_period"]) >= grace_ms + 10_000
    assert (worker["restart"], worker["init"]) == ("unless-stopped", True)


def test_every_url_leads_to_the_server_of_the_file(services: dict[str, Any]) -> None:
    """Worker and producer wait for Valkey to be healthy and reach it by its service name."""
    for name in ("worker", "producer", "dashboard", "worker-native"):
        server = "valkey-native" if name == "worker-native" else "valkey"
        assert services[name]["environment"]["ECHOMQ_URL"] == f"redis://{server}:6379/0"
        assert services[name]["depends_on"] == {server: {"condition": "service_healthy"}}


def test_the_native_profile_is_the_same_with_the_module(services: dict[str, Any]) -> None:
    """Server and worker of the profile are the others with the module built in and spoken to; without the profile
    neither is started, and the image is a stage of the Dockerfile that makes the module from its source.
    """
    native, plain = dict(services["valkey-native"]), dict(services["valkey"])
    stage = native.pop("build")["target"]
    assert (native.pop("profiles"), native.pop("image")) == (["native"], "echomq-valkey:local")
    assert native.pop("volumes") == ["valkey-native-data:/data"]
    program, load, module, *options = native.pop("command")
    assert [program, *options] == plain["command"]
    assert native == {key: value for key, value in plain.items() if key not in {"image", "volumes", "command"}}
    worker, other = services["worker-native"], services["worker"]
    assert worker["profiles"] == ["native"]
    assert worker["environment"] == other["environment"] | {
        "ECHOMQ_URL": "redis://valkey-native:6379/0",
        "ECHOMQ_WIRE": "auto",
    }
    kept = {"build", "image", "command", "init", "stop_grace_period", "restart"}
    assert {key: worker[key] for key in kept} == {key: other[key] for key in kept}
    assert (load, json.loads(stages()[stage]["CMD"])[1:]) == ("--loadmodule", ["--loadmodule", module])
    assert stages()[stage]["COPY"] == f"--from=module /src/emq.so {module}"
    assert (stages()["module"]["COPY"], stages()["module"]["FROM"]) == ("native /src", "valkey/valkey:9 AS module")


# ------------------------------------------------------------------------------------------- Dockerfile


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), continued lines joined."""
    text = re.sub(r"^#.*\n", "", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def stages() -> dict[str, dict[str, str]]:
    """The last value of each instruction, by the name of the stage; the last stage has none."""
    found: dict[str, dict[str, str]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            name = rest.partition(" AS ")[2]
            found[name] = {}
        if name in found:
            found[name][word] = rest
    return found


def last_stage() -> dict[str, str]:
    """What holds in the image that is kept."""
    return stages()[""]


def test_base_images_are_pinned_and_slim() -> None:
    """Two stages of the worker on one slim base with a version, two of the server on its own; the worker's comes last,
    which is the one that is built where none is named.
    """
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases == ["valkey/valkey:9"] * 2 + ["python:3.12-slim-bookworm"] * 2


def test_the_image_runs_as_nobody_special() -> None:
    """The last stage has a numeric user other than root, which is how Kubernetes can tell."""
    user, group = last_stage()["USER"].split(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("instruction", ["ENTRYPOINT", "CMD", "HEALTHCHECK"])
def test_commands_are_lists(instruction: str) -> None:
    """No shell stands between a signal and the daemon."""
    rest = last_stage()[instruction]
    assert isinstance(json.loads(rest[rest.index("[") :]), list)


def test_it_is_stopped_by_what_it_understands() -> None:
    """SIGTERM starts the orderly shutdown, and the daemon itself is the entry point."""
    assert last_stage()["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(last_stage()["ENTRYPOINT"]) == ["echomq-worker"]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    """Each source of a COPY exists in the project and passes .dockerignore; nothing else does."""
    copies = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = {Path(name).name for names in copies for name in names}
    lines = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line[0] == "!"} == sources
    assert [name for name in sources if not (PROJECT / name).exists()] == []
    assert any(fnmatch("echomq_worker/__pycache__", line) for line in lines[1:])


# --------------------------------------------------------------------------------- what they would run


def test_the_health_command(url: str, server: Any) -> None:
    """The command of HEALTHCHECK ends with 0 where the server answers and with another code where none does."""
    rest = last_stage()["HEALTHCHECK"]
    program, *arguments = json.loads(rest[rest.index("[") :])
    assert program == "echomq-worker"
    assert run_worker(*arguments, env={"ECHOMQ_URL": url})[0] == 0
    code, output = run_worker(*arguments, env={"ECHOMQ_URL": "redis://127.0.0.1:1/0"})
    assert code not in {0, 2}, output


def registered_queues(module: str, attribute: str) -> set[str]:
    """The queues that `@<attribute>.handler("queue", …)` names in an example."""
    tree = ast.parse((PROJECT / Path(*module.split("."))).with_suffix(".py").read_text())
    return {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and (ast.unparse(call.func), bool(call.args)) == (f"{attribute}.handler", True)
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def test_producer_and_worker_are_about_the_same_queue(services: dict[str, Any]) -> None:
    """What the producer enqueues has a handler in the module that the worker runs."""
    run, target = services["worker"]["command"][:2]
    enqueue, queue = services["producer"]["command"][:2]
    assert (run, enqueue) == ("run", "enqueue")
    assert queue in registered_queues(*target.split(":"))


async def test_the_commands_of_the_compose_file(services: dict[str, Any], url: str, raw: Redis) -> None:
    """The producer's command enqueues, and the worker's then completes all of it."""
    producer, worker = services["producer"], services["worker"]
    code, output = run_worker(*producer["command"], env={**producer["environment"], "ECHOMQ_URL": url}, cwd=PROJECT)
    assert code == 0, output
    base = f"emq:{{{producer['command'][1]}}}:"
    enqueued = await raw.zcard(f"{base}pending")
    assert enqueued >= 3
    # Any free port: others test on this machine too.
    env = {**worker["environment"], "ECHOMQ_URL": url, "ECHOMQ_HTTP": "127.0.0.1:0"}
    with WorkerProcess(*worker["command"], env=env, cwd=PROJECT) as running:

        async def completed() -> bool:
            return int(await raw.hget(f"{base}metrics:completed", "count") or 0) >= enqueued

        await wait_until(completed, "all that was produced is completed")
        running.send(signal.SIGTERM)
        assert await running.ended() == 0


HANDLERS = """
import asyncio
from echomq_worker import Job, Worker

worker = Worker()

@worker.handler("container")
async def slow(job: Job) -> None:
    print("handler begins", flush=True)
    await asyncio.sleep(0.4)
    print("handler ends", flush=True)
"""


def namespace() -> tuple[str, ...]:
    """What makes a process PID 1 of a namespace, or nothing where that is not permitted, and then it says so."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc")
    if shutil.which("unshare") is None:
        sys.stderr.write("unshare is not installed: signals are tried without a namespace\n")
        return ()
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        sys.stderr.write(f"no namespace here: {tried.stderr.strip()}: signals are tried without one\n")
        return ()
    return unshare


def innermost(pid: int) -> int:
    """The process that `pid` has started, or `pid` itself: unshare forks, and a signal is meant for the daemon."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


async def test_as_pid_1_it_ends_what_it_has_in_hand(tmp_path: Path, url: str, raw: Redis) -> None:
    """SIGTERM to PID 1: the job that runs is finished and settled, then the exit code is 0.

    Report 52 (chrisguidry/docket#212).
    """
    (tmp_path / "handlers.py").write_text(HANDLERS)
    env = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": "20000"}
    assert run_worker("enqueue", "container", "{}", env=env)[0] == 0
    unshare = namespace()
    command = (*unshare, sys.executable, "-m", "echomq_worker")
    with WorkerProcess("run", "handlers:worker", env=env, cwd=tmp_path, command=command) as worker:
        await worker.saw("handler begins")
        daemon = innermost(worker.pid) if unshare else worker.pid
        if unshare:
            status = Path(f"/proc/{daemon}/status").read_text()
            assert re.search(r"^NSpid:\s+\d+\s+1$", status, re.MULTILINE), status
        os.kill(daemon, signal.SIGTERM)
        await worker.saw("handler ends")
        assert await worker.ended() == 0
    keys = await keyspace_of(raw)
    assert keys["emq:{container}:metrics:completed"] == {"count": "1"}
    assert not [name for name in keys if ":job:" in name or name.endswith((":pending", ":active"))]


async def test_as_pid_1_it_ends_when_idle(tmp_path: Path, url: str) -> None:
    """An idle daemon ends at once with 0 at SIGTERM and at SIGINT."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    unshare = namespace()
    command = (*unshare, sys.executable, "-m", "echomq_worker")
    for number in (signal.SIGTERM, signal.SIGINT):
        with WorkerProcess("run", "handlers:worker", env={"ECHOMQ_URL": url}, cwd=tmp_path, command=command) as worker:
            await worker.saw("container")
            os.kill(innermost(worker.pid) if unshare else worker.pid, number)
            assert await worker.ended() == 0


async def test_as_pid_1_it_keeps_several_processes(tmp_path: Path, url: str) -> None:
    """With --processes: a child that is killed is started again, and SIGTERM to PID 1 ends them all with 0."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    unshare = namespace()
    env = {"ECHOMQ_URL": url, "ECHOMQ_LOG_FORMAT": "json"}
    command = (*unshare, sys.executable, "-m", "echomq_worker")
    with WorkerProcess("run", "handlers:worker", "--processes", "2", env=env, cwd=tmp_path, command=command) as worker:
        await wait_until(lambda: len(worker.records("worker started")) == 2, "both have started")
        daemon = innermost(worker.pid) if unshare else worker.pid
        os.kill(innermost(daemon), signal.SIGKILL)
        await wait_until(lambda: len(worker.records("worker started")) == 3, "the third has started")
        assert worker.records("process restarts")[0]["code"] == -signal.SIGKILL
        os.kill(daemon, signal.SIGTERM)
        assert await worker.ended() == 0
        assert len(worker.records("worker stopped")) == 2
