"""
### A dataset of token shards, once a month, or one that grows every month

Launches the Dataflow Flex Template of fineshards, waits for the job without occupying a worker, and
checks with `fineshards verify` that the dataset is complete.

| task | what it does |
|---|---|
| `prepare` | creates the launch request; skips the rest if there is nothing new to do |
| `launch` | starts the job, or adopts the one that an earlier attempt started |
| `wait` | deferred until the job is done; fails with the reason if the job fails or is cancelled |
| `cancel` | cancels the job if it outlives `wait`: the run was marked failed, or took too long |
| `verify` | reads the whole dataset, in the image that the job ran in |

Unpausing the DAG starts the run of the month that has begun, at once.

Setup and troubleshooting: `docs/cloud.md` of fineshards.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.google.cloud.hooks.dataflow import DataflowHook, DataflowJobStatus
from airflow.providers.google.cloud.hooks.gcs import GCSHook
from airflow.providers.google.cloud.links.dataflow import DataflowJobLink
from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.providers.google.cloud.sensors.dataflow import DataflowJobStatusSensor
from airflow.sdk import DAG, BaseOperator, Context, Param, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

# What a scheduled run builds. Change these five before you upload the file. A manual run can change
# all of PARAMS.
PROJECT = "my-project"
REGION = "us-central1"
TEMPLATE = "gs://my-bucket/templates/fineshards.json"
IMAGE = "us-central1-docker.pkg.dev/my-project/fineshards/fineshards:0.1.0"
OUTPUT = "gs://my-bucket/fineweb-edu/{month}"

PARAMS = {
    "dataset": Param(
        "HuggingFaceFW/fineweb-edu",
        type="string",
        pattern=r"^(gs://\S+|[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)$",
        description="A dataset on the Hugging Face hub, or files: gs://bucket/folder/*.parquet. "
        "{month} stands for the month in which the run is due, {last_month} for the one before.",
    ),
    "dataset_config": Param(
        "sample-10BT",
        type=["null", "string"],
        pattern=r"^[\w.-]+$",
        description="Configuration of a dataset on the hub; empty for its default, and for files.",
    ),
    "append": Param(
        False,
        type="boolean",
        description="Add the input to the dataset in output, once there is one, instead of "
        "building a dataset per month.",
    ),
    "output": Param(
        OUTPUT,
        type="string",
        pattern=r"^gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^/\s]+)+$",
        description="The dataset's folder. {month} and {last_month} are as in dataset, such as "
        "2026-11.",
    ),
    "flags": Param(
        {"shard_tokens": "100000000", "tokenizer": "cl100k_base"},
        type="object",
        additionalProperties={"type": "string"},
        description="Flags of `fineshards build` that say what the dataset is. An append takes "
        "them from the dataset.",
    ),
    "environment": Param(
        {"machineType": "n2-standard-4", "maxWorkers": 10},
        type="object",
        description="The workers, in the words of Dataflow's FlexTemplateRuntimeEnvironment, such "
        "as diskSizeGb, subnetwork and serviceAccountEmail. Each vCPU needs 4 GB of memory.",
    ),
    "verify_sample": Param(
        0,
        type="number",
        minimum=0,
        maximum=100,
        description="Percentage of the documents that verify tokenizes again from their sources.",
    ),
    "project": Param(PROJECT, type="string", pattern=r"^[a-z][-a-z0-9:.]+[a-z0-9]$"),
    "region": Param(REGION, type="string", pattern=r"^[a-z]+-[a-z]+[0-9]+$"),
    "template": Param(
        TEMPLATE,
        type="string",
        pattern=r"^gs://[^/\s]+/\S+\.json$",
        description="The template's file, from `make template`.",
    ),
    "image": Param(
        IMAGE,
        type="string",
        pattern=r"^\S+[:@]\S+$",
        description="The template's image, for Dataflow's workers and for verify.",
    ),
}

# How long a job may take: far longer than ten machines need for FineWeb-Edu.
LONGEST_JOB = timedelta(days=3)
LONGEST_VERIFY = timedelta(hours=12)
POLL_SECONDS = 60
# After a launch without a good answer, `launch` looks for the job after each of these waits.
LOOKS = (0, 10, 50)
# Composer's own cluster: the namespace for pods, and its kubeconfig file. See
# https://cloud.google.com/composer/docs/composer-3/use-kubernetes-pod-operator
NAMESPACE = "composer-user-workloads"
KUBE_CONFIG = "/home/airflow/composer_kube_config"

MANIFEST = "metadata/manifest.json"


def load_manifest(output: str) -> dict[str, Any] | None:
    """The manifest of a finished dataset, without files and shards; None if it is not finished."""
    bucket, _, folder = output.removeprefix("gs://").partition("/")
    storage = GCSHook()
    if not storage.exists(bucket, f"{folder}/{MANIFEST}"):
        return None
    content = storage.download(bucket, f"{folder}/{MANIFEST}")
    # Files and shards come last, and are millions of lines.
    head, follow, _ = content.partition(b',\n "files": [')
    manifest: dict[str, Any] = json.loads(head + b"}" if follow else content)
    return manifest


def source(params: Mapping[str, Any]) -> dict[str, str]:
    """The flags of `build` that name the input. Files have no configuration."""
    if params["dataset"].startswith("gs://"):
        return {"input": params["dataset"]}
    config = params["dataset_config"]
    return {"dataset": params["dataset"]} | ({"dataset_config": config} if config else {})


def other_dataset(
    manifest: Mapping[str, Any], params: Mapping[str, Any], compare_source: bool = True
) -> list[str]:
    """How a finished dataset differs from the one that the run should build, or append to."""
    origin, settings = manifest["origin"], manifest["settings"]
    named = source(params) if compare_source else {}
    compared = [
        (name, origin.get(name.removeprefix("dataset_")), wanted) for name, wanted in named.items()
    ]
    recorded = {
        "shard_tokens": str(settings["shard_tokens"]),
        "tokenizer": settings["tokenizer"]["name"],
    }
    compared += [
        (name, recorded[name], value.rpartition("/")[2])
        for name, value in params["flags"].items()
        if name in recorded
    ]
    return [f"{name} is {is_!r}, not {wanted!r}" for name, is_, wanted in compared if is_ != wanted]


def holds(manifest: Mapping[str, Any] | None, flags: Mapping[str, Any]) -> bool:
    """Whether a finished dataset has the input that flags of `build` name, in any generation."""
    if manifest is None:
        return False
    origin = manifest["origin"]
    named = ("input", "test_input", "dataset", "dataset_config")
    wanted = {name.removeprefix("dataset_"): flags[name] for name in named if name in flags}
    later = range(2, len(manifest.get("generations", [])) + 1)
    return any(
        all(origin.get(f"{name}{ending}") == value for name, value in wanted.items())
        for ending in ("", *(f" of generation {number}" for number in later))
    )


def job_name(dag_id: str, run_id: str, output: str) -> str:
    """The name of a run's job: the same for every attempt, different for every run.

    Dataflow allows one active job per name, so the name keeps a second attempt from starting a
    second job. Names are `[a-z]([-a-z0-9]{0,61}[a-z0-9])?`; the hash tells runs apart whose ids
    differ only in other characters.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")[:42]
    digest = hashlib.sha256("\n".join((dag_id, run_id, output)).encode()).hexdigest()[:8]
    return f"fineshards-{readable}-{digest}".replace("--", "-")


def launch_request(
    dag_id: str, run_id: str, output: str, params: Mapping[str, Any], grows: bool = False
) -> Any:
    """The body of flexTemplates:launch. grows: whether the output holds a dataset to append to.

    The parameters are flags of `build`, and some of Beam. Temporary files go to the template's
    bucket, as in `make template`, never into the dataset.
    """
    parameters = source(params) | {
        "output": output,
        # What a dataset is was decided when it was built.
        **({"append": "true"} if grows else params["flags"]),
        "sdk_container_image": params["image"],
    }
    folder = f"gs://{params['template'].split('/')[2]}"
    places = {"stagingLocation": f"{folder}/staging", "tempLocation": f"{folder}/temp"}
    return {
        "launchParameter": {
            "jobName": job_name(dag_id, run_id, output),
            "containerSpecGcsPath": params["template"],
            "parameters": parameters,
            "environment": places | params["environment"],
        }
    }


def with_months(text: str, due: datetime) -> str:
    """A text with the months of a run that is due at a time in place of their names.

    Not those of the logical date: that is a month earlier where the environment has
    create_cron_data_intervals = True.
    """
    last = due.replace(day=1) - timedelta(days=1)
    return text.replace("{month}", f"{due:%Y-%m}").replace("{last_month}", f"{last:%Y-%m}")


@task.short_circuit
def prepare(**context: Any) -> Any:
    """The launch request; None, which skips the rest, if the dataset has the run's input."""
    run = context["dag_run"]
    # A person may give a run any date.
    by_hand = run.run_type == "manual" and run.logical_date
    params = dict(context["params"])
    for name in ("output", "dataset"):
        params[name] = with_months(params[name], by_hand or run.run_after)
    output = params["output"]
    manifest = load_manifest(output)
    if manifest is None:
        return launch_request(run.dag_id, run.run_id, output, params)
    grows = params["append"] and not holds(manifest, source(params))
    differences = other_dataset(manifest, params, compare_source=not params["append"])
    if differences:
        raise AirflowFailException(
            f"{output} holds a different finished dataset: {'; '.join(differences)}. Give another "
            "output."
        )
    if grows:
        return launch_request(run.dag_id, run.run_id, output, params, grows=True)
    logging.getLogger(__name__).info("%s has this input already; nothing to do.", output)
    return None


class LaunchOnce(DataflowStartFlexTemplateOperator):
    """Launches the template unless a job of that name exists already; returns the job's id.

    The provider's operator makes names unique (`append_job_name`), so each retry would start one
    more job. Here a running job is adopted, even if its launch was answered by an error or not at
    all. So is a job that is done and has written its dataset. After a job that failed or was
    cancelled a new one is started, which resumes its work.
    """

    def execute(self, context: Context) -> str:
        """See BaseOperator; raises AirflowException if no job runs because of an error."""
        self.job = self._find() or self._launch()
        job_id = self.hook.extract_job_id(self.job)
        DataflowJobLink.persist(
            context=context, project_id=self.project_id, region=self.location, job_id=job_id
        )
        return job_id

    def _launch(self) -> dict[str, Any]:
        try:
            launched: dict[str, Any] = self.hook.launch_job_with_flex_template(
                body=self.body, location=self.location, project_id=self.project_id
            )
            return launched
        except Exception as error:
            # Whatever went wrong, the job may have been started. If it was, it is watched.
            name = self.body["launchParameter"]["jobName"]
            self.log.warning("The launch of %s failed: %s. Looking for the job.", name, error)
            state = "it is not known whether a job of that name runs; look in Dataflow"
            for seconds in LOOKS:
                time.sleep(seconds)
                try:
                    job = self._find()
                except Exception as unanswered:
                    self.log.warning("Dataflow did not list its jobs: %s", unanswered)
                    continue
                if job is not None:
                    return job
                state = "Dataflow has no running job of that name"
            raise AirflowException(f"the launch of {name} failed, and {state}: {error}") from error

    def _find(self) -> dict[str, Any] | None:
        name = self.body["launchParameter"]["jobName"]
        flags = self.body["launchParameter"]["parameters"]
        service = self.hook.get_conn().projects().locations().jobs()
        request = service.list(projectId=self.project_id, location=self.location, name=name)
        while request is not None:
            answer = request.execute(num_retries=self.hook.num_retries)
            for job in answer.get("jobs", []):
                state = job.get("currentState")
                done = state == DataflowJobStatus.JOB_STATE_DONE and holds(
                    load_manifest(flags["output"]), flags
                )
                if done or state not in DataflowJobStatus.TERMINAL_STATES:
                    self.log.info("Job %s of this run exists already: %s", job["id"], state)
                    running: dict[str, Any] = job
                    return running
            request = service.list_next(previous_request=request, previous_response=answer)
        return None


class WaitForJob(DataflowJobStatusSensor):
    """Deferred until the job is done. Any other end is a failure that no retry can fix.

    The trigger of the provider's launch operator never ends for a cancelled job. This sensor's ends
    for every terminal state, and also when a request fails: then the task is retried.
    """

    template_fields = (*DataflowJobStatusSensor.template_fields, "project_id", "location")

    def poke(self, context: Context) -> bool:
        """Whether the job is done; raises AirflowFailException if it ended in another state."""
        job = {"job_id": self.job_id, "project_id": self.project_id, "location": self.location}
        state = self.hook.get_job(**job)["currentState"]
        if state in self.expected_statuses:
            return True
        if state in DataflowJobStatus.TERMINAL_STATES:
            errors = [
                message["messageText"]
                for message in self.hook.fetch_job_messages_by_id(**job)
                if message.get("messageImportance") == "JOB_MESSAGE_ERROR"
            ]
            reason = "\n".join(errors[-3:]) or "it has no error message"
            raise AirflowFailException(f"Dataflow job {self.job_id} ended as {state}: {reason}")
        return False

    def execute_complete(self, context: Context, event: dict[str, Any]) -> bool:
        """Handles the trigger's event, but trusts only the job's own state."""
        if not self.poke(context):
            raise AirflowException(event["message"])
        return True


class VerifyInPod(BaseOperator):
    """Runs `fineshards verify` in a pod of Composer's own cluster, and shows its log.

    The provider's pod operator is imported when the task runs. It imports two clients of
    Kubernetes, which takes longer than all else in this file, and Airflow reads the file every half
    a minute. (It warns in the task's log that it is called from another operator.)
    """

    template_fields = ("image", "folder", "sample")

    def __init__(self, *, image: str, folder: str, sample: str, **options: Any) -> None:
        super().__init__(**options)
        self.image = image
        self.folder = folder
        self.sample = sample
        self.pod: Any = None

    def execute(self, context: Context) -> None:
        """See BaseOperator; raises AirflowException if the pod fails."""
        from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
        from kubernetes.client.models import V1ResourceRequirements

        self.pod = KubernetesPodOperator(
            task_id=self.task_id,
            name="fineshards-verify",
            namespace=NAMESPACE,
            config_file=KUBE_CONFIG,
            kubernetes_conn_id="kubernetes_default",
            image=self.image,
            cmds=["fineshards"],
            arguments=["verify", self.folder, f"--sample={self.sample}%"],
            container_resources=V1ResourceRequirements(
                requests={"cpu": "2", "memory": "8Gi", "ephemeral-storage": "10Gi"}
            ),
            # The image contains all of Beam; a node takes minutes to pull it.
            startup_timeout_seconds=15 * 60,
        )
        self.pod.execute(context)

    def on_kill(self) -> None:
        """Deletes the pod."""
        if self.pod is not None:
            self.pod.on_kill()


@task(retries=5)
def cancel(job_id: str, **context: Any) -> None:
    """Cancels the job if it has not ended."""
    params = context["params"]
    DataflowHook(poll_sleep=POLL_SECONDS).cancel_job(
        job_id=job_id, project_id=params["project"], location=params["region"]
    )


with DAG(
    dag_id="fineshards",
    description="Builds exact token shards of a text dataset on Dataflow, and verifies them.",
    doc_md=__doc__,
    schedule="@monthly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["fineshards", "dataflow"],
    params=PARAMS,
    # Retries are for failures that pass: an API that does not answer, a worker that is lost. A
    # failed job is not retried, because a person must see why. There is no dagrun_timeout, because
    # it would skip `cancel`; each task has its own timeout.
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=2),
        "execution_timeout": timedelta(minutes=15),
    },
) as dag:
    request = prepare()
    launch = LaunchOnce(
        task_id="launch",
        body=request,
        project_id="{{ params.project }}",
        location="{{ params.region }}",
        append_job_name=False,
    )
    wait = WaitForJob(
        task_id="wait",
        job_id=launch.output,
        expected_statuses=DataflowJobStatus.JOB_STATE_DONE,
        project_id="{{ params.project }}",
        location="{{ params.region }}",
        deferrable=True,
        poll_interval=POLL_SECONDS,
        retries=5,
        execution_timeout=LONGEST_JOB,
    )
    verify = VerifyInPod(
        task_id="verify",
        image="{{ params.image }}",
        folder="{{ ti.xcom_pull('prepare')['launchParameter']['parameters']['output'] }}",
        sample="{{ params.verify_sample }}",
        # Pods can be evicted, and verify can be repeated. A pod that outlives its Airflow worker is
        # found again and waited for.
        retries=1,
        execution_timeout=LONGEST_VERIFY,
    )
    wait >> [verify, cancel(launch.output).as_teardown(setups=launch)]
