"""What is counted at once is counted as if one by one."""

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from app.telemetry import observe_all

BUCKETS = (0.001, 0.5, 1, 30)


def test_many_observations_at_once_are_as_many_one_by_one() -> None:
    values = [0, 0.0005, 0.001, 0.0011, 0.5, 0.7, 1, 30, 30.5, 1e9]
    said = []
    for at_once in (True, False):
        registry = CollectorRegistry()
        timer = Histogram("seconds", "Time.", ["of"], buckets=BUCKETS, registry=registry).labels("a")
        if at_once:
            observe_all(timer, values)
        else:
            for value in values:
                timer.observe(value)
        said.append(generate_latest(registry))
    assert said[0] == said[1]
    assert b"seconds_count" in said[0]
