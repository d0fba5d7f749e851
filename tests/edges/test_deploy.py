"""deploy/: manifests that a cluster would take, and no metric, label or page in them that the worker does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml

from echomq_worker.hostport import parse_hostport
from echomq_worker.probes.instruments import INSTRUMENTS
from echomq_worker.settings import Settings, variable
from tests.edges.test_container import misfits

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "echomq-workers.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
KEDA = DEPLOY / "keda" / "scaledobject.yaml"

# The names of series by the metric that they belong to.
SERIES = {
    f"{one.name}{suffix}": one
    for one in INSTRUMENTS
    for suffix in (("_bucket", "_count", "_sum") if one.kind == "histogram" else ("",))
}
# What Prometheus adds when it scrapes.
SCRAPED = {"job", "instance"}
NAME = re.compile(r"\bechomq_[a-z_]+\b")
SELECTOR = re.compile(r"\b(echomq_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*=~?|(\w+)\s*!=")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
# Functions and operators that are used; another one is a slip, or belongs here first.
WORDS = {
    *("sum", "max", "min", "count", "by", "on", "and", "or", "vector"),
    *("rate", "increase", "min_over_time", "histogram_quantile"),
}


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def wrong(expression: str) -> list[str]:
    """What an expression of Prometheus names that is not there, and what cannot be one."""
    found = [f"{name}: no such series" for name in NAME.findall(expression) if name not in SERIES]
    labels: set[str] = {"le"} if "_bucket" in expression else set()
    for name, selector in SELECTOR.findall(expression):
        if name in SERIES:
            labels |= set(SERIES[name].labels)
            used = {one or other for one, other in MATCHER.findall(re.sub(r'"[^"]*"', '""', selector))}
            found += [f"{name}: no label {label}" for label in used - set(SERIES[name].labels) - SCRAPED]
    for group in GROUPED.findall(expression):
        found += [f"grouped by {label}, which nothing has" for label in _split(group) - labels - SCRAPED]
    plain = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"', "", GROUPED.sub(lambda match: match[0].split("(")[0], expression))
    found += [f"{word}: not known here" for word in re.findall(r"[a-z_]{2,}", plain) if word not in {*WORDS, *SERIES}]
    pairs = zip("([{", ")]}", strict=True)
    return found + [
        f"{open_}: not closed" for open_, close in pairs if expression.count(open_) != expression.count(close)
    ]


def _split(group: str) -> set[str]:
    return {label.strip() for label in group.split(",")}


def targets() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of everything that the dashboard asks."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_a_wrong_expression_is_told() -> None:
    """A metric, a label or a function that is none, and a bracket too few."""
    assert wrong('sum by (queue) (rate(echomq_jobs_total{outcome="dead"}[5m])) > 0') == []
    assert wrong("echomq_jobs") == ["echomq_jobs: no such series", "echomq_jobs: not known here"]
    assert wrong("echomq_job_wait_seconds")[0] == "echomq_job_wait_seconds: no such series"
    assert wrong('echomq_jobs_total{lane="x", queue!="y"}') == ["echomq_jobs_total: no label lane"]
    assert wrong("sum by (lane) (echomq_jobs_total)") == ["grouped by lane, which nothing has"]
    assert wrong("avg(echomq_ready") == ["avg: not known here", "(: not closed"]


# ---------------------------------------------------------------------------------------------- Grafana, Prometheus


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()))
def test_the_dashboard_asks_for_what_is_exported(title: str, expression: str, legend: str) -> None:
    """Series, labels and functions of every panel; the legend names only labels that are left."""
    assert wrong(expression.replace("$__rate_interval", "5m")) == []
    grouped = {label for group in GROUPED.findall(expression) for label in _split(group)}
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped, title


def test_the_dashboard_shows_everything() -> None:
    """Each metric has its place; a new one needs one."""
    shown = {SERIES[name].name for _, expression, _ in targets() for name in NAME.findall(expression)}
    assert {one.name for one in INSTRUMENTS} - shown == set()


def test_the_dashboard_loads() -> None:
    """What Grafana wants of one: ids that are unique, panels side by side, a data source that is chosen there."""
    board = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert wrong(variables["queue"]["definition"].split("(")[1].split(",")[0]) == []
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_exported(rule: dict[str, Any]) -> None:
    """Its expression, and what its text says of it."""
    assert wrong(rule["expr"]) == []
    grouped = {label for group in GROUPED.findall(rule["expr"]) for label in _split(group)}
    texts = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= grouped
    assert set(re.findall(r"\{\{ *\$(\w+)", texts)) <= {"labels", "value"}


def test_the_rules_have_the_shape_of_rules() -> None:
    """Keys that Prometheus knows, each alert once, with a severity."""
    words = re.compile(r"\S(.*\S)?", re.DOTALL)
    rule = {
        "alert": re.compile(r"Echomq[A-Za-z]+"),
        "expr": words,
        "for": re.compile(r"\d+[smh]"),
        "labels": {"severity": re.compile("critical|warning|info")},
        "annotations": {"summary": words, "description": words},
    }
    found = yaml.safe_load(ALERTS.read_text())
    assert misfits(found, {"groups": [{"name": words, "rules": [rule]}]}, "alerts") == []
    assert all({"alert", "expr", "labels", "annotations"} <= set(one) for one in rules())
    assert len({one["alert"] for one in rules()}) == len(rules()) > 10


# ---------------------------------------------------------------------------------------------- Kubernetes, KEDA


def test_a_wrong_manifest_is_told() -> None:
    """The schema is asked strictly: a key that is none is an error."""
    made = documents(KUBERNETES[0])[0]
    made["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)


def worker_of(deployment: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a deployment, and the container in it that is the worker."""
    pod = deployment["spec"]["template"]["spec"]
    return pod, next(one for one in [*pod["containers"], *pod.get("initContainers", ())] if one["name"] == "worker")


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_a_cluster_takes_the_manifests(path: Path) -> None:
    """Of the right form; the disruption budget is for these pods and lets a node be drained."""
    deployment, budget = documents(path)
    for one in (deployment, budget):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    assert (deployment["kind"], budget["kind"]) == ("Deployment", "PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for one in (deployment, budget):
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] >= 1


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_a_worker_is_asked_where_it_answers_and_has_time_to_end(path: Path) -> None:
    """Its port, its pages, its settings; longer than the grace and what it takes to hand over; not as root."""
    pod, worker = worker_of(documents(path)[0])
    env = {one["name"]: one for one in worker["env"]}
    assert set(env) <= {variable(name) for name in Settings.model_fields}
    assert "secretKeyRef" in env["ECHOMQ_URL"]["valueFrom"]
    assert pod["terminationGracePeriodSeconds"] >= int(env["ECHOMQ_GRACE_MS"]["value"]) / 1000 + 10
    (port,) = worker["ports"]
    assert parse_hostport(env["ECHOMQ_HTTP"]["value"])[1] == port["containerPort"]
    probes = {name: worker[name]["httpGet"] for name in worker if name.endswith("Probe")}
    pages = {name: probe["path"] for name, probe in probes.items()}
    assert pages.items() >= {"startupProbe": "/livez", "livenessProbe": "/livez"}.items()
    assert pages.get("readinessProbe", "/readyz") == "/readyz"
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    # A handler that blocks for a while is warned about, not killed: half a minute at least.
    live = worker["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 30
    security = {**pod.get("securityContext", {}), **worker["securityContext"]}
    assert security["runAsNonRoot"]
    assert not security["allowPrivilegeEscalation"]


def test_a_sidecar_ends_after_its_application() -> None:
    """An init container that is restarted always; the pod waits for both; its readiness is not the application's."""
    pod, worker = worker_of(documents(DEPLOY / "kubernetes" / "sidecar.yaml")[0])
    assert worker in pod["initContainers"]
    assert worker["restartPolicy"] == "Always"
    assert "readinessProbe" not in worker
    assert pod["terminationGracePeriodSeconds"] >= 30 + 35


def test_the_workers_are_scraped_where_they_answer() -> None:
    """By the usual annotations."""
    for path in KUBERNETES:
        deployment = documents(path)[0]
        found = deployment["spec"]["template"]["metadata"]["annotations"]
        _, worker = worker_of(deployment)
        assert found["prometheus.io/port"] == str(worker["ports"][0]["containerPort"])
        assert (found["prometheus.io/path"], found["prometheus.io/scrape"]) == ("/metrics", "true")


# The part of KEDA's ScaledObject that is used.
SCALED: dict[str, Any] = {
    "apiVersion": re.compile(r"keda\.sh/v1alpha1"),
    "kind": re.compile("ScaledObject"),
    "metadata": {"name": re.compile(r"[a-z0-9-]+")},
    "spec": {
        "scaleTargetRef": {"name": re.compile(r"[a-z0-9-]+")},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "pollingInterval": int,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": int}}}},
        "triggers": [
            {
                "type": re.compile("prometheus"),
                "metadata": {
                    "serverAddress": re.compile(r"https?://\S+"),
                    "query": re.compile(r".+"),
                    # KEDA takes its numbers as text.
                    "threshold": re.compile(r"\d+(\.\d+)?"),
                    "ignoreNullValues": re.compile("true|false"),
                },
            }
        ],
    },
}


def test_the_autoscaler_reads_ready_jobs() -> None:
    """The number of report 119, for the deployment beside it, and never down to nobody who could tell it."""
    (made,) = documents(KEDA)
    assert misfits(made, SCALED, "keda") == []
    spec = made["spec"]
    assert spec["scaleTargetRef"]["name"] == documents(DEPLOY / "kubernetes" / "worker.yaml")[0]["metadata"]["name"]
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    query = trigger["metadata"]["query"]
    assert wrong(query) == []
    assert "max by (queue) (echomq_queue_ready_jobs" in query
    # Without a number an autoscaler lets the workers be; a queue that is paused asks for none.
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert "1 - max by (queue) (echomq_queue_paused" in query


def test_the_shape_of_an_autoscaler_can_be_missed() -> None:
    """A misspelt key and a number that is none are told."""
    (made,) = documents(KEDA)
    made["spec"]["minReplicas"] = 1
    made["spec"]["triggers"][0]["metadata"]["threshold"] = 100
    assert len(misfits(made, SCALED, "keda")) == 2
