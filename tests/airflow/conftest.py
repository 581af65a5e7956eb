"""Local servers for the DAG that speak the protocols of Dataflow, Cloud Storage and Kubernetes.

Airflow is real, and so are the provider's hooks, triggers and operators. Only where they connect to
is changed: the Dataflow hook's endpoint, the channel of its asynchronous client, and, by
configuration, the storage's address, the credentials and the kubeconfig file.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "templates"
SAMPLE = ROOT / "samples/debian_text.parquet"

# Airflow reads its configuration when it is imported, so this comes before the imports.
# ruff: noqa: E402
_home = tempfile.mkdtemp(prefix="airflow-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ |= {
    "AIRFLOW_HOME": _home,
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(
        {
            "conn_type": "google_cloud_platform",
            "extra": {"is_anonymous": True, "project": "test-project"},
        }
    ),
    "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes"}),
    "NO_PROXY": "localhost,127.0.0.1",
}

import grpc
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dagrun import DagRun
from airflow.providers.google.cloud.hooks.dataflow import AsyncDataflowHook, DataflowHook
from airflow.sdk import DAG
from airflow.utils.db import initdb
from dataflow_grpc import GrpcInterface
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from kubernetes_server import KubernetesServer
from support.dataflow_server import DataflowServer, Job
from support.gcs_server import gcs_server
from support.hub_server import HubServer

pytest_plugins = ["support.slices"]

BUCKET = "shards-bucket"
OUTPUT = f"gs://{BUCKET}/text/2026-05"
DATASET = "acme/text"
LOGICAL_DATE = datetime(2026, 5, 1, tzinfo=UTC)
RUN_ID = "manual__2026-05-01T00:00:00+00:00"
# Parameters of a run that differ from the defaults. {month} gives the end of OUTPUT.
PARAMS = {
    "dataset": DATASET,
    "dataset_config": None,
    "output": f"gs://{BUCKET}/text/{{month}}",
    "flags": {"shard_tokens": "100000", "tokenizer": "cl100k_base"},
    "project": "test-project",
    "image": "registry.example/fineshards:1",
}


@pytest.fixture(scope="session")
def _database() -> None:
    initdb()


@pytest.fixture
def dag(_database: None) -> DAG:
    """The DAG of the repository, freshly read, without waits between retries."""
    bag = DagBag(str(DAGS / "composer_dag.py"))
    assert bag.import_errors == {}
    dag = bag.dags["fineshards"]
    for each in dag.tasks:
        each.retry_delay = timedelta(0)
    return dag


@pytest.fixture
def module(dag: DAG) -> ModuleType:
    """The module that Airflow read the DAG as."""
    return sys.modules[type(dag.get_task("launch")).__module__]


@dataclass
class Cloud:
    """The services, and the dataset on the hub that all jobs read."""

    dag: DAG
    dataflow: DataflowServer
    state_service: GrpcInterface
    cluster: KubernetesServer
    environment: dict[str, str]

    def run(self, **params: Any) -> DagRun:
        """Runs the whole DAG as the run RUN_ID, without waits between retries."""
        return self.dag.test(
            logical_date=LOGICAL_DATE, run_after=LOGICAL_DATE, run_conf=PARAMS | params
        )

    def build(self, job: Job) -> None:
        """Does what the job on Dataflow does: `fineshards build` with the template's parameters."""
        flags = [
            f"--{name}={value}"
            for name, value in job.parameters.items()
            if name != "sdk_container_image"
        ]
        self.fineshards("build", *flags)

    def fineshards(self, *arguments: str) -> None:
        done = subprocess.run(
            ["fineshards", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def bucket(self) -> storage.Bucket:
        """The bucket of OUTPUT, to read and to damage."""
        client = storage.Client(project="test-project", credentials=AnonymousCredentials())
        return client.bucket(BUCKET)

    @property
    def launches(self) -> list[str]:
        """Names of all jobs that were requested, even if refused."""
        return [
            request.body["launchParameter"]["jobName"]
            for request in self.dataflow.requests
            if request.path.endswith("flexTemplates:launch")
        ]


@pytest.fixture
def cloud(dag: DAG, module: ModuleType, tmp_path: Path, monkeypatch: Any) -> Iterator[Cloud]:
    """All services that the DAG uses; jobs build a dataset of the sample."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    shutil.copy(SAMPLE, folder)
    with (
        HubServer() as hub,
        gcs_server(BUCKET) as address,
        DataflowServer() as dataflow,
        GrpcInterface(dataflow) as state_service,
    ):
        hub.push(DATASET, folder)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        environment = {
            "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "HF_ENDPOINT": hub.url,
            "STORAGE_EMULATOR_HOST": address,
            "NO_PROXY": "127.0.0.1",
        }
        with KubernetesServer(environment) as cluster:
            _connect(dag, module, state_service, cluster.write_config(tmp_path), monkeypatch)
            cloud = Cloud(dag, dataflow, state_service, cluster, environment)
            dataflow.expect(run=cloud.build)
            yield cloud


def _connect(
    dag: DAG, module: ModuleType, state_service: GrpcInterface, kube: Path, monkeypatch: Any
) -> None:
    endpoint = ClientOptions(api_endpoint=state_service.service.url)
    monkeypatch.setattr(DataflowHook, "get_client_options", lambda self: endpoint)

    async def initialize_client(self: AsyncDataflowHook, client_class: Any) -> Any:
        transport = client_class.get_transport_class("grpc_asyncio")
        return client_class(
            transport=transport(channel=grpc.aio.insecure_channel(state_service.address))
        )

    monkeypatch.setattr(AsyncDataflowHook, "initialize_client", initialize_client)
    monkeypatch.setattr(module, "POLL_SECONDS", 1)
    dag.get_task("wait").poll_interval = 1
    monkeypatch.setattr(module, "KUBE_CONFIG", str(kube))
    monkeypatch.setattr(module, "LOOKS", (0, 0.1))
