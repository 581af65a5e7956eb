"""The Composer DAG as a real Airflow reads it, without running it."""

import json
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from conftest import DAGS, PARAMS
from google.cloud.dataflow_v1beta3.types import LaunchFlexTemplateParameter

from tools.template_metadata import metadata

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


@pytest.mark.parametrize(
    "params",
    [
        {},
        {
            "dataset": "gs://bucket/text/*.parquet",
            "flags": {"tokenizer": "gs://bucket/llama/tokenizer.json"},
        },
        {"dataset": "plain", "dataset_config": "sample-10BT"},
        {
            "environment": {
                "diskSizeGb": 80,
                "subnetwork": "regions/us-central1/subnetworks/workers",
                "serviceAccountEmail": "me@p.iam",
            }
        },
    ],
)
def test_the_template_accepts_the_parameters_of_the_launch(
    dag: DAG, module: ModuleType, params: dict[str, Any]
) -> None:
    defaults = {name: dag.params[name] for name in dag.params}
    values = defaults | {"dataset_config": None} | params
    request = module.launch_request("fineshards", "run", "gs://bucket/out", values)
    known = {parameter["name"]: parameter for parameter in metadata()["parameters"]}
    passed = request["launchParameter"]["parameters"]
    assert set(passed) <= set(known)
    required = {name for name, parameter in known.items() if not parameter.get("isOptional")}
    assert required <= set(passed)
    # The service's own message takes every field of the request.
    body = json.dumps(request["launchParameter"])
    message = LaunchFlexTemplateParameter.from_json(body, ignore_unknown_fields=False)
    environment = params.get("environment", {})
    assert message.environment.disk_size_gb == environment.get("diskSizeGb", 0), "if it is given"
    assert message.environment.subnetwork == environment.get("subnetwork", "")
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
        ("flags", {"shard_tokens": 100}),
        ("environment", "big"),
        ("verify_sample", 101),
        ("project", "My Project"),
        ("region", "here"),
        ("template", "gs://bucket/template"),
        ("image", "untagged"),
    ],
)
def test_an_invalid_parameter_is_refused(dag: DAG, name: str, value: object) -> None:
    dag.params.validate()
    with pytest.raises(ParamValidationError):
        dag.params.get_param(name).resolve(value)


def test_the_parameters_of_the_tests_are_valid(dag: DAG) -> None:
    for name, value in PARAMS.items():
        dag.params.get_param(name).resolve(value)
