"""The Composer DAG as a real Airflow reads it, without running it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable
from conftest import DAGS, PARAMS
from google.cloud.dataflow_v1beta3.types import LaunchFlexTemplateParameter
from pendulum import DateTime

METADATA = json.loads((DAGS / "metadata.json").read_text())
# https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.jobs: names of jobs.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def test_it_runs_once_a_month_one_run_at_a_time(dag: DAG) -> None:
    assert dag.schedule == "@monthly"
    assert dag.catchup is False
    assert dag.max_active_runs == 1
    assert dag.is_paused_upon_creation is True
    assert dag.tags == {"fineshards", "dataflow"}
    assert "verify" in str(dag.doc_md)
    # It would mark `cancel` as skipped, and the job would continue unwatched.
    assert dag.dagrun_timeout is None


def next_due(
    monkeypatch: pytest.MonkeyPatch, now: datetime, intervals: bool, catchup: bool, first: bool
) -> datetime:
    """When the next run of @monthly is due, after that of February unless it is the first.

    intervals: the environment's create_cron_data_intervals.
    """
    for name in ("trigger", "interval"):
        monkeypatch.setattr(f"airflow.timetables.{name}.utcnow", lambda: now)
    kind = CronDataIntervalTimetable if intervals else CronTriggerTimetable
    january, february = (DateTime(2026, month, 1, tzinfo=UTC) for month in (1, 2))
    last = DataInterval(january if intervals else february, february)
    info = kind("@monthly", timezone="UTC").next_dagrun_info(
        last_automated_data_interval=None if first else last,
        restriction=TimeRestriction(january, None, catchup=catchup),
    )
    assert info is not None
    return info.run_after


@pytest.mark.parametrize("catchup", [True, False])
@pytest.mark.parametrize("intervals", [True, False])
def test_months_are_the_same_in_every_environment(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, intervals: bool, catchup: bool
) -> None:
    due = next_due(monkeypatch, datetime(2026, 3, 1, 0, 1, tzinfo=UTC), intervals, catchup, False)
    assert module.with_months("{last_month}/{month}", due) == "2026-02/2026-03"


@pytest.mark.parametrize("intervals", [True, False])
def test_a_dag_that_is_unpaused_runs_at_once_for_the_month_that_has_begun(
    monkeypatch: pytest.MonkeyPatch, intervals: bool
) -> None:
    due = next_due(monkeypatch, datetime(2026, 3, 20, tzinfo=UTC), intervals, False, True)
    assert due == datetime(2026, 3, 1, tzinfo=UTC)


def test_the_order_of_the_tasks(dag: DAG) -> None:
    assert {each.task_id: each.downstream_task_ids for each in dag.tasks} == {
        "prepare": {"launch"},
        "launch": {"wait", "cancel"},
        "wait": {"verify", "cancel"},
        "verify": set(),
        "cancel": set(),
    }
    # As a teardown of `launch`, `cancel` runs however `wait` ends, even if a person ends it.
    assert dag.get_task("launch").is_setup
    assert dag.get_task("cancel").is_teardown
    assert dag.get_task("wait").deferrable
    assert dag.get_task("launch").append_job_name is False


def test_every_task_has_its_own_timeout_and_retries(dag: DAG) -> None:
    limits = {each.task_id: each.execution_timeout for each in dag.tasks}
    assert limits == {
        "prepare": timedelta(minutes=15),
        "launch": timedelta(minutes=15),
        "wait": timedelta(days=3),
        "cancel": timedelta(minutes=15),
        "verify": timedelta(hours=12),
    }
    retries = {each.task_id: each.retries for each in dag.tasks}
    assert retries == {"prepare": 2, "launch": 2, "wait": 5, "cancel": 5, "verify": 1}


def test_the_dag_can_be_serialized(dag: DAG) -> None:
    stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert set(stored.task_dict) == set(dag.task_dict)
    dag.params.validate()


def test_reading_it_needs_no_network_and_imports_nothing_large_that_can_wait() -> None:
    program = (
        "import runpy, socket, sys\n"
        "def refuse(*_): raise AssertionError('connected while the file was read')\n"
        "socket.socket.connect = socket.create_connection = refuse\n"
        f"runpy.run_path({str(DAGS / 'composer_dag.py')!r})\n"
        "unwanted = {'fineshards', 'apache_beam', 'kubernetes', 'kubernetes_asyncio'}\n"
        "print(sorted(unwanted & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Deprecat" not in done.stderr


@pytest.mark.parametrize(
    "run_id",
    [
        "scheduled__2026-11-01T00:00:00+00:00",
        "manual__2026-11-21T16:45:27.123456+00:00_a8Xq",
        "Größe 7!",
        "---",
        "x" * 250,
        "a__" * 30,
        "b" * 41 + "-" + "c" * 10,
    ],
)
def test_a_run_has_one_valid_job_name(module: ModuleType, run_id: str) -> None:
    name = module.job_name("fineshards", run_id, "gs://bucket/out")
    assert NAME.fullmatch(name), name
    assert name == module.job_name("fineshards", run_id, "gs://bucket/out")


def test_different_runs_have_different_job_names(module: ModuleType) -> None:
    runs = [
        ("fineshards", "run_1", "gs://bucket/out"),
        ("fineshards", "run-1", "gs://bucket/out"),
        ("fineshards", "Run_1", "gs://bucket/out"),
        ("copy", "run_1", "gs://bucket/out"),
        ("fineshards", "run_1", "gs://bucket/other"),
        ("fineshards", "run_1" + "x" * 100, "gs://bucket/out"),
        ("fineshards", "run_1" + "x" * 101, "gs://bucket/out"),
    ]
    assert len({module.job_name(*run) for run in runs}) == len(runs)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"dataset": "gs://bucket/text/*.parquet", "tokenizer": "gs://bucket/llama/tokenizer.json"},
        {"dataset": "plain", "dataset_config": "sample-10BT", "service_account": "me@p.iam"},
        {
            "disk_size_gb": 80,
            "subnetwork": "regions/us-central1/subnetworks/workers",
            "hf_token_secret": "projects/p/secrets/hf/versions/latest",
        },
    ],
)
def test_the_template_accepts_the_parameters_of_the_launch(
    dag: DAG, module: ModuleType, params: dict[str, Any]
) -> None:
    defaults = {name: dag.params[name] for name in dag.params}
    values = defaults | {"dataset_config": None} | params
    request = module.launch_request("fineshards", "run", "gs://bucket/out", values)
    known = {parameter["name"]: parameter for parameter in METADATA["parameters"]}
    passed = request["launchParameter"]["parameters"]
    assert set(passed) <= set(known)
    required = {name for name, parameter in known.items() if not parameter.get("isOptional")}
    assert required <= set(passed)
    # The service's own message takes every field of the request.
    body = json.dumps(request["launchParameter"])
    message = LaunchFlexTemplateParameter.from_json(body, ignore_unknown_fields=False)
    assert message.environment.disk_size_gb == params.get("disk_size_gb", 0), "if it is given"
    assert message.environment.subnetwork == params.get("subnetwork", "")
    assert passed.get("hf_token_secret") == params.get("hf_token_secret")
    for name, value in passed.items():
        for regex in known[name].get("regexes", []):
            assert re.fullmatch(regex, value), (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output", "s3://bucket/out"),
        ("output", "gs://bucket"),
        ("output", "gs://bucket/"),
        ("dataset", "../secret"),
        ("dataset", "a/b/c"),
        ("dataset_config", "two words"),
        ("shard_tokens", 0),
        ("shard_tokens", "many"),
        ("max_workers", 1001),
        ("machine_type", "big"),
        ("disk_size_gb", 10),
        ("subnetwork", "workers"),
        ("hf_token_secret", "hf_abc"),
        ("verify_sample", 101),
        ("project", "My Project"),
        ("region", "here"),
        ("template", "gs://bucket/template"),
        ("image", "untagged"),
        ("service_account", "nobody"),
    ],
)
def test_an_invalid_parameter_is_refused(dag: DAG, name: str, value: object) -> None:
    dag.params.validate()
    with pytest.raises(ParamValidationError):
        dag.params.get_param(name).resolve(value)


def test_the_parameters_of_the_tests_are_valid(dag: DAG) -> None:
    for name, value in PARAMS.items():
        dag.params.get_param(name).resolve(value)
