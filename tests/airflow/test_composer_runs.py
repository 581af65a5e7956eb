"""Whole runs of the Composer DAG against local servers; the job really builds a dataset."""

import json
import time
from types import ModuleType
from typing import Any

import pytest
from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
from airflow.models.dagrun import DagRun
from airflow.serialization.serialized_objects import DagSerialization
from airflow.settings import Session
from conftest import BUCKET, DATASET, OUTPUT, PARAMS, RUN_ID, SAMPLE, Cloud
from support.dataflow_server import Job, ServiceError

FOLDER = "text/2026-05"


def states(run: DagRun) -> dict[str, str]:
    return {task.task_id: str(task.state) for task in run.get_task_instances()}


def tries(run: DagRun, name: str) -> int:
    return next(task.try_number for task in run.get_task_instances() if task.task_id == name)


ALL_DONE = dict.fromkeys(("prepare", "launch", "wait", "cancel", "verify"), "success")
JOB_FAILED = ALL_DONE | {"wait": "failed", "verify": "upstream_failed"}


def test_a_run_builds_and_verifies_a_dataset(cloud: Cloud, module: ModuleType) -> None:
    run = cloud.run(verify_sample=5)
    assert states(run) == ALL_DONE
    assert run.run_id == RUN_ID
    assert run.state == "success"
    (job,) = cloud.dataflow.jobs
    assert job.launched
    assert job.name == module.job_name("fineshards", RUN_ID, OUTPUT)
    assert job.parameters == {
        "dataset": DATASET,
        "output": OUTPUT,
        "shard_tokens": "100000",
        "tokenizer": "cl100k_base",
        "sdk_container_image": PARAMS["image"],
    }
    assert job.body["launchParameter"]["environment"] == {
        "stagingLocation": "gs://my-bucket/staging",
        "tempLocation": "gs://my-bucket/temp",
        "machineType": "n2-standard-4",
        "maxWorkers": 10,
    }
    (pod,) = cloud.cluster.created
    assert pod.image == PARAMS["image"]
    assert pod.command == ["fineshards", "verify", OUTPUT, "--sample=5%"]
    assert pod.process.returncode == 0
    # The pod is deleted, and a job that is done is not cancelled.
    assert cloud.cluster.pods == {}
    assert not any(request.method == "PUT" for request in cloud.dataflow.requests)
    manifest = json.loads(cloud.bucket().blob(f"{FOLDER}/{module.MANIFEST}").download_as_bytes())
    assert manifest["origin"]["dataset"] == DATASET


def test_one_dataset_grows_by_a_dump_a_month(cloud: Cloud, module: ModuleType) -> None:
    cloud.bucket().blob("dumps/1.parquet").upload_from_filename(SAMPLE)
    output = f"gs://{BUCKET}/grows"
    params = {"append": True, "output": output, "dataset": f"gs://{BUCKET}/dumps/1.parquet"}
    assert states(cloud.run(**params)) == ALL_DONE
    # The same month again has nothing new.
    assert states(cloud.run(**params))["launch"] == "skipped"
    params["dataset"] = f"gs://{BUCKET}/dumps/2.parquet"
    cloud.bucket().blob("dumps/2.parquet").upload_from_filename(SAMPLE)
    assert states(cloud.run(**params)) == ALL_DONE
    first, second = cloud.dataflow.jobs
    assert "append" not in first.parameters
    assert second.parameters == {
        "input": params["dataset"],
        "output": output,
        "append": "true",
        "sdk_container_image": PARAMS["image"],
    }
    manifest = json.loads(cloud.bucket().blob(f"grows/{module.MANIFEST}").download_as_bytes())
    assert [generation["files"] for generation in manifest["generations"]] == [1, 1]
    assert states(cloud.run(**params))["launch"] == "skipped"
    # It is a dataset of other shards.
    assert cloud.run(**params, flags={"shard_tokens": "200000"}).state == "failed"


def test_a_finished_dataset_is_not_built_again(cloud: Cloud) -> None:
    cloud.fineshards("build", f"--dataset={DATASET}", f"--output={OUTPUT}", "--shard_tokens=100000")
    run = cloud.run()
    assert run.state == "success"
    rest = dict.fromkeys(("launch", "wait", "cancel", "verify"), "skipped")
    assert states(run) == {"prepare": "success"} | rest
    assert cloud.dataflow.requests == []
    assert cloud.cluster.created == []


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "acme/other"},
        {"dataset": "gs://bucket/*.parquet"},
        {"dataset_config": "other"},
        {"flags": {"shard_tokens": "200000"}},
        {"flags": {"tokenizer": "p50k_base"}},
    ],
    ids=str,
)
def test_a_folder_with_another_dataset_fails_the_run(cloud: Cloud, other: dict[str, Any]) -> None:
    manifest = {
        "origin": {"dataset": DATASET, "config": "default", "split": "train", "commit": "1"},
        "settings": {"shard_tokens": 100_000, "tokenizer": {"name": "cl100k_base"}},
    }
    name = f"{FOLDER}/metadata/manifest.json"
    cloud.bucket().blob(name).upload_from_string(json.dumps(manifest))
    assert cloud.run().state == "success"
    run = cloud.run(**other)
    assert run.state == "failed"
    assert states(run)["prepare"] == "failed"
    assert tries(run, "prepare") == 1
    assert cloud.dataflow.requests == []


def test_a_failed_job_fails_the_run_with_its_reason(cloud: Cloud, capfd: Any) -> None:
    cloud.dataflow.expect(states=("PENDING", "RUNNING", "FAILED"), errors=("no column text",))
    run = cloud.run()
    assert run.state == "failed"
    assert states(run) == JOB_FAILED
    # A retry would see the same state.
    assert tries(run, "wait") == 1
    assert len(cloud.launches) == 1
    assert "ended as JOB_STATE_FAILED: no column text" in "".join(capfd.readouterr())


@pytest.mark.parametrize("end", ["CANCELLED", "DRAINED", "UPDATED"])
def test_a_job_that_was_ended_by_a_person_fails_the_run(cloud: Cloud, end: str) -> None:
    cloud.dataflow.expect(states=("RUNNING", "RUNNING", "RUNNING", end))
    run = cloud.run()
    assert run.state == "failed"
    assert states(run) == JOB_FAILED
    assert tries(run, "wait") == 1
    # No one polls any more: only `wait` (as trigger and as task) and `cancel` saw the end.
    (job,) = cloud.dataflow.jobs
    assert job.seen.count(end) <= 3


def test_damage_fails_the_run(cloud: Cloud) -> None:
    def build_and_damage(job: Job) -> None:
        cloud.build(job)
        blob = cloud.bucket().blob(f"{FOLDER}/train/train_0001.npy")
        content = bytearray(blob.download_as_bytes())
        content[-3] ^= 1
        blob.upload_from_string(bytes(content))

    cloud.dataflow.expect(run=build_and_damage)
    run = cloud.run()
    assert run.state == "failed"
    assert states(run) == ALL_DONE | {"verify": "failed"}
    assert len(cloud.cluster.created) == 2
    for pod in cloud.cluster.created:
        assert pod.process.returncode == 1
        assert "train_0001.npy" in pod.output


def test_a_job_without_a_dataset_fails_the_run(cloud: Cloud) -> None:
    cloud.dataflow.expect()
    run = cloud.run()
    assert states(run) == ALL_DONE | {"verify": "failed"}
    assert "holds no finished dataset" in cloud.cluster.created[-1].output


def test_the_job_of_an_earlier_attempt_is_adopted(cloud: Cloud, module: ModuleType) -> None:
    name = module.job_name("fineshards", RUN_ID, OUTPUT)
    params = {name: cloud.dag.params[name] for name in cloud.dag.params} | PARAMS
    body = module.launch_request("fineshards", RUN_ID, OUTPUT, params)
    where = {"project": "test-project", "location": "us-central1"}

    def build_after_the_first_request(job: Job) -> None:
        while not job.seen:
            time.sleep(0.05)
        cloud.build(job)

    cloud.dataflow.expect(run=build_after_the_first_request)
    earlier = cloud.dataflow.create(name, where, body, launched=True)
    run = cloud.run()
    assert states(run) == ALL_DONE
    assert cloud.launches == []
    assert cloud.dataflow.jobs == [earlier]


@pytest.mark.parametrize("status", [503, 403], ids=["retried by the client", "not retried"])
@pytest.mark.parametrize("listed", ["at once", "late"])
def test_the_job_of_a_launch_without_an_answer_is_watched(
    cloud: Cloud, monkeypatch: Any, status: int, listed: str
) -> None:
    """Also if it is the last try: there is no other to find the job."""
    create = cloud.dataflow.create
    cloud.dag.get_task("launch").retries = 0

    def create_and_fail(*arguments: Any, **options: Any) -> Job:
        monkeypatch.setattr(cloud.dataflow, "create", create)
        create(*arguments, **options)
        if listed == "late":
            # Not in the next list.
            cloud.dataflow.hidden = 1
        raise ServiceError(status, "UNAVAILABLE", "the answer was lost")

    monkeypatch.setattr(cloud.dataflow, "create", create_and_fail)
    run = cloud.run()
    assert states(run) == ALL_DONE
    assert len(cloud.dataflow.jobs) == 1
    assert tries(run, "launch") == 1
    # The second request, if any, was refused because of the job of that name.
    assert len(cloud.launches) == (2 if status == 503 else 1)


def test_a_launch_that_is_refused_fails_with_the_reason(
    cloud: Cloud, monkeypatch: Any, capfd: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> Job:
        raise ServiceError(403, "PERMISSION_DENIED", "the role is missing")

    monkeypatch.setattr(cloud.dataflow, "create", refuse)
    run = cloud.run()
    assert states(run)["launch"] == "failed"
    assert tries(run, "launch") == 3
    assert "Dataflow has no running job of that name" in (said := "".join(capfd.readouterr()))
    assert "the role is missing" in said


def test_a_run_that_is_cleared_starts_again(cloud: Cloud) -> None:
    cloud.dataflow.expect(states=("RUNNING", "FAILED"))
    assert cloud.run().state == "failed"
    cloud.dataflow.expect(run=cloud.build)
    assert cloud.run().state == "success"
    # The same if its job was done but the dataset has been deleted.
    for blob in cloud.bucket().list_blobs():
        blob.delete()
    assert cloud.run().state == "success"
    assert len(cloud.dataflow.jobs) == 3
    assert len(set(cloud.launches)) == 1


def test_a_job_that_outlives_its_wait_is_cancelled(cloud: Cloud) -> None:
    cloud.dataflow.expect(states=("RUNNING",))
    cloud.state_service.closed = True
    run = cloud.run()
    assert states(run) == JOB_FAILED
    # A failed request for the state is retried.
    assert tries(run, "wait") == 6
    (job,) = cloud.dataflow.jobs
    assert job.state == "CANCELLED"
    assert len(cloud.launches) == 1


def test_a_run_that_is_marked_failed_still_cancels_its_job(cloud: Cloud) -> None:
    cloud.dataflow.expect(states=("RUNNING", "FAILED"))
    cloud.run()
    # Sets the run back to the time when the job ran, then does what the button does.
    session = Session()
    run = session.query(DagRun).filter_by(run_id=RUN_ID).one()
    run.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(cloud.dag))
    run.state = "running"
    for task in run.get_task_instances(session=session):
        if task.task_id in ("wait", "verify", "cancel"):
            task.state = "deferred" if task.task_id == "wait" else None
    session.commit()
    set_dag_run_state_to_failed(dag=run.dag, run_id=RUN_ID, commit=True, session=session)
    session.commit()
    assert states(run) == ALL_DONE | {"wait": "failed", "verify": "skipped", "cancel": "None"}
    todo, _ = run.update_state(session=session)
    assert [task.task_id for task in todo] == ["cancel"]
    session.close()
