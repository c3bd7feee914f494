"""What operators look at: /metrics of a real server, the board, the alerts, and the page that tells of them all."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from app import __version__, telemetry
from app.embedded import EmbeddedPostgres
from tests.conftest import ROOT, Server, wait_until
from tests.engine.fleet import QUICK
from tests.fakes import FakeOllama
from tests.serving import serving

PAGE = ROOT / "docs" / "operators.md"
BOARD = json.loads((ROOT / "docs" / "grafana" / "foreman.json").read_text())
ALERTS = yaml.safe_load((ROOT / "docs" / "grafana" / "alerts.yaml").read_text())

# Name as it is exposed, and labels.
DECLARED: dict[str, tuple[str, ...]] = {
    each._name + ("_total" if each._type == "counter" else ""): each._labelnames
    for each in vars(telemetry).values()
    if isinstance(each, MetricWrapperBase)
}
# What Prometheus and its client library add.
ADDED = {"instance", "job", "le"}
OF_ANY_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


# -- the board, the alerts, the page ------------------------------------------------------------------------


def family(name: str) -> str:
    """The metric that a series belongs to."""
    whole = re.sub(r"_(bucket|sum|count)$", "", name)
    return whole if whole in DECLARED else name


def problems_of(expression: str) -> Iterator[str]:
    """Metrics and labels that there are not."""
    used: set[str] = set()
    for name, selector in re.findall(r"\b((?:foreman|process|python)_\w+)(?:\{([^}]*)\})?", expression):
        if name in OF_ANY_PROCESS:
            labels: tuple[str, ...] = ()
        elif family(name) in DECLARED:
            labels = DECLARED[family(name)]
        else:
            yield f"there is no metric {name}"
            continue
        used.update(labels)
        for label in re.findall(r"(\w+)\s*=?[=~!]", selector):
            if label not in {*labels, *ADDED}:
                yield f"{name} has no label {label}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        for label in re.split(r",\s*", grouped):
            if label not in used | ADDED:
                yield f"nothing in it has a label {label}"


def expressions() -> dict[str, str]:
    """All of the board and the alerts, by where they stand."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    }
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            found[f"variable {variable['name']}"] = f'{name}{{{label}=""}}'
    return found | {rule["alert"]: rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]}


@pytest.mark.parametrize("where", sorted(expressions()))
def test_what_is_asked_for_is_there(where: str) -> None:
    expression = expressions()[where]
    assert "_" in expression
    assert expression.count("(") == expression.count(")")
    assert list(problems_of(expression)) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(foreman_jobs_gone)", "there is no metric foreman_jobs_gone"),
        ('foreman_jobs_ended_total{model="m"}', "foreman_jobs_ended_total has no label model"),
        ("sum by (why) (foreman_jobs_running)", "nothing in it has a label why"),
    ],
)
def test_what_is_not_there_is_found(expression: str, problem: str) -> None:
    assert list(problems_of(expression)) == [problem]


def test_the_board_can_be_imported() -> None:
    assert [each["name"] for each in BOARD["templating"]["list"]] == ["datasource", "instance", "queue"]
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & mine, f"{panel['title']} lies on another"
        taken |= mine
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(refs)) == len(refs)


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    page = PAGE.read_text()
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / file) == PAGE
        assert anchor == rule["alert"].lower()
        assert anchor in anchors, f"nobody says what to do about {rule['alert']}"
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label == "instance" or re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), rule["alert"]


def test_every_metric_is_documented_with_its_labels() -> None:
    told = re.findall(
        r"^\| `(foreman_\w+)` \| ([^|]*) \| (counter|gauge|histogram) \| .+ \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels, _ in told} == DECLARED
    assert len(told) == len(DECLARED)


# -- a real server ------------------------------------------------------------------------------------------


class Metrics:
    """What a server exposes in one moment."""

    def __init__(self, server: Server) -> None:
        text = httpx.get(f"{server.url}/metrics").text
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self.samples = [sample for each in self.families.values() for sample in each.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series that have these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self.samples if sample.name == name}


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(postgres, tmp_path_factory.mktemp("metrics"), **QUICK) as running:
        yield running


def submit(server: Server, **fields: Any) -> str:
    answer = httpx.post(f"{server.url}/jobs", json=fields)
    assert answer.status_code in {200, 202}, answer.text
    return str(answer.json()["job_id"])


def claim(server: Server, kind: str, prefer: str = "", **more: Any) -> dict[str, Any]:
    body = {"worker": "tester", "queues": [kind], "kinds": [kind], "wait_seconds": 30, **more}
    [job] = httpx.post(f"{server.url}/claims", json=body, headers={"prefer": prefer}).json()["jobs"]
    return dict(job)


def settle(server: Server, job: dict[str, Any], verb: str, **more: Any) -> None:
    body = {"lease_token": job["lease_token"], **more}
    answer = httpx.post(f"{server.url}/jobs/{job['job_id']}/{verb}", json=body)
    assert answer.status_code == 200, answer.text


def ended(server: Server, kind: str, state: str) -> float:
    return Metrics(server).value("foreman_jobs_ended_total", queue=kind, kind=kind, state=state)


def test_all_that_is_exposed_is_declared(server: Server) -> None:
    metrics = Metrics(server)
    for name, each in metrics.families.items():
        if name.startswith("foreman_"):
            exposed = name + ("_total" if each.type == "counter" else "")
            labels = {label for sample in each.samples for label in sample.labels} - ADDED
            assert labels <= set(DECLARED[exposed]), name
    assert metrics.value("foreman_build_info", version=__version__, role="all") == 1
    # Those without labels are there from the start.
    assert {name for name, labels in DECLARED.items() if not labels} <= {
        name + ("_total" if each.type == "counter" else "") for name, each in metrics.families.items()
    }


def test_a_run_in_the_server_is_timed_and_counted(server: Server) -> None:
    submit(server, kind="noop", queue="m-noop")
    wait_until(lambda: Metrics(server).value("foreman_jobs_ended_total", queue="m-noop") == 1)
    metrics = Metrics(server)
    labels = {"queue": "m-noop", "kind": "noop"}
    assert metrics.value("foreman_jobs_ended_total", state="done", **labels) == 1
    assert metrics.value("foreman_job_wait_seconds_count", **labels) == 1
    assert metrics.value("foreman_job_run_seconds_count", verb="complete", **labels) == 1
    assert metrics.value("foreman_claim_seconds_count", queue="m-noop") >= 1
    assert metrics.value("foreman_batch_size_count", batcher="settlements") >= 1
    assert metrics.value("foreman_batch_size_count", batcher="submissions") >= 1
    assert metrics.value("foreman_queue_jobs", queue="m-noop", state="done") == 1


def test_runs_of_workers_over_http_are_timed_and_counted(server: Server) -> None:
    kind = "m-http"
    for prefer in ("", "return=minimal"):
        submit(server, kind=kind, queue=kind)
        settle(server, claim(server, kind, prefer), "complete", result=1)
    submit(server, kind=kind, queue=kind)
    again = claim(server, kind)
    # By itself a job that was started spends its time in two states.
    settle(server, again, "start")
    error = {"code": "no_luck", "message": "hunter2"}
    settle(server, again, "fail", error=error, retryable=True, retry_in_seconds=0)
    settle(server, claim(server, kind), "fail", error=error, retryable=False)
    metrics = Metrics(server)
    labels = {"queue": kind, "kind": kind}
    assert metrics.value("foreman_job_wait_seconds_count", **labels) == 4
    timed = {
        verb: metrics.value("foreman_job_run_seconds_count", verb=verb, **labels)
        for verb in metrics.labels("foreman_job_run_seconds_count", "verb")
    }
    assert {verb: number for verb, number in timed.items() if number} == {
        "complete": 2,
        "retry": 1,
        "fail": 1,
    }
    assert metrics.value("foreman_jobs_retried_total", error="no_luck", **labels) == 1
    assert [ended(server, kind, state) for state in ("done", "failed", "cancelled")] == [2, 1, 0]
    assert "hunter2" not in httpx.get(f"{server.url}/metrics").text


def test_every_other_end_is_counted_once(server: Server) -> None:
    kind = "m-ends"
    cancelled = submit(server, kind=kind, queue=kind, delay_seconds=3600)
    httpx.post(f"{server.url}/jobs/{cancelled}/cancel")
    assert ended(server, kind, "cancelled") == 1
    submit(server, kind=kind, queue=kind, delay_seconds=3600, deadline_seconds=0.1)
    wait_until(lambda: ended(server, kind, "expired") == 1)
    # Its worker never comes back, and it was the last attempt.
    submit(server, kind=kind, queue=kind, max_attempts=1)
    claim(server, kind, lease_seconds=0.2)
    wait_until(lambda: ended(server, kind, "failed") == 1)
    metrics = Metrics(server)
    labels = {"queue": kind, "kind": kind}
    assert metrics.value("foreman_leases_lost_total", **labels) == 1
    assert metrics.value("foreman_job_run_seconds_count", verb="fail", **labels) == 1
    assert metrics.value("foreman_jobs_ended_total", **labels) == 3


def test_a_key_whose_turn_is_another_s_is_counted_too(server: Server) -> None:
    kind = "m-keys"
    settings = {"key": ["k"], "max_queued": 1, "when_full": "replace-oldest"}
    assert httpx.put(f"{server.url}/queues/{kind}", json=settings).status_code in {200, 201}
    for _ in range(3):
        submit(server, kind=kind, queue=kind)
    assert ended(server, kind, "skipped") == 1
    claim(server, kind, lease_seconds=0.2)
    wait_until(lambda: ended(server, kind, "stale") == 1)
    assert Metrics(server).value("foreman_leases_lost_total", queue=kind) == 1


def test_tokens_and_targets_are_told_and_a_target_that_is_gone_is_not(server: Server) -> None:
    with FakeOllama() as fake:
        httpx.put(f"{server.url}/targets/m-target", json={"url": fake.url, "slots": 3})
        wait_until(lambda: Metrics(server).value("foreman_target_awake", target="m-target") == 1)
        job_id = submit(server, model="llama3.2", messages=[{"role": "user", "content": "Hello, world"}])
        usage = httpx.get(f"{server.url}/jobs/{job_id}", params={"wait": 60}, timeout=120).json()["usage"]
        metrics = Metrics(server)
        for of in ("prompt", "completion"):
            assert metrics.value("foreman_tokens_total", model="llama3.2", of=of) == usage[f"{of}_tokens"] > 0
        assert metrics.value("foreman_target_slots", target="m-target") == 3
        assert metrics.labels("foreman_target_breaker_open", "target") == {"m-target"}
        assert metrics.labels("foreman_target_slots_used", "target") == {"m-target"}
        wait_until(lambda: Metrics(server).labels("foreman_target_resident", "model"))
        httpx.delete(f"{server.url}/targets/m-target")
    gauges = ("awake", "breaker_open", "slots", "slots_used", "resident")
    metrics = Metrics(server)
    assert [metrics.labels(f"foreman_target_{each}", "target") for each in gauges] == [set()] * len(gauges)


def test_pending_webhooks_are_told_for_few_receivers(server: Server) -> None:
    """None of these names can be resolved: they stay pending."""
    for n in range(telemetry.MAX_RECEIVERS + 3):
        submit(
            server,
            kind="m-hooks",
            queue="m-hooks",
            state_webhook_url=f"https://receiver-{n}.invalid/hook",
            delay_seconds=3600,
        )
    metrics = Metrics(server)
    receivers = metrics.labels("foreman_webhooks_pending", "receiver")
    assert len(receivers) == telemetry.MAX_RECEIVERS + 1
    assert telemetry.OTHER in receivers
    assert metrics.value("foreman_webhooks_pending") == telemetry.MAX_RECEIVERS + 3
    assert metrics.labels("foreman_webhooks_oldest_pending_seconds", "receiver") == receivers


def test_names_that_callers_choose_are_not_more_than_so_many(server: Server) -> None:
    kinds = [f"m-kind-{n}" for n in range(telemetry.MAX_NAMES + 50)]
    jobs = [{"kind": kind, "queue": f"q-{kind}"} for kind in kinds]
    ids = [
        each["job_id"]
        for each in httpx.post(f"{server.url}/jobs/batch", json={"jobs": jobs}, timeout=60).json()["jobs"]
    ]
    before = Metrics(server).value("foreman_jobs_ended_total")
    for job_id in ids:
        assert httpx.post(f"{server.url}/jobs/{job_id}/cancel").status_code == 200
    metrics = Metrics(server)
    places = {
        (sample.labels["queue"], sample.labels["kind"])
        for sample in metrics.samples
        if sample.name == "foreman_jobs_ended_total"
    }
    assert len(places) <= telemetry.MAX_NAMES + 1
    assert (telemetry.OTHER, telemetry.OTHER) in places
    # None of them is lost.
    assert metrics.value("foreman_jobs_ended_total") - before == len(ids)
    queues = metrics.labels("foreman_queue_jobs", "queue")
    assert len(queues) == telemetry.MAX_NAMES + 1
    assert telemetry.OTHER in queues


def test_errors_of_the_server_are_told_by_route_and_status(server: Server) -> None:
    httpx.get(f"{server.url}/jobs/{'0' * 26}")
    metrics = Metrics(server)
    assert metrics.value("foreman_request_seconds_count", route="/jobs/{job_id}", status="404") >= 1


def test_the_pool_of_connections_is_told(server: Server) -> None:
    metrics = Metrics(server)
    assert metrics.value("foreman_database_connections") >= 1
    assert metrics.labels("foreman_database_connections", "state") == {"in_use", "idle"}
    assert metrics.value("foreman_database_connections_most") == 10
    # The first connections were not at hand.
    assert metrics.value("foreman_database_wait_seconds_count") >= 1
