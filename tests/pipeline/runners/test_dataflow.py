"""Dataflow without Google: the graph, a template launch, a whole submission, and failures.

Cloud Storage and the Dataflow service are servers on this machine. A local run of the same job does
the work of Dataflow's workers.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from apache_beam.portability.api import beam_runner_api_pb2
from google.cloud.dataflow_v1beta3.types import Job as DataflowJob
from google.cloud.storage import Client
from support.checkout import ROOT
from support.dataflow_server import DATAFLOW, IMAGE, DataflowServer
from support.gcs_server import client_environment, gcs_server
from support.hub_server import HubServer
from support.oracle import oracle_by_text, read_texts
from support.tokenizer_files import save, train

from fineshards.job_status.progress_words import describe_status
from fineshards.job_status.status import status

pytestmark = pytest.mark.cloud

PROGRAM = ROOT / "fineshards/cli/build_command.py"
STEPS = {"Discover", "Tokenize", "Report", "Plan", "Write", "Commit"}


@dataclass(frozen=True)
class Cloud:
    """A bucket `bucket`, with a file in `in/`, and a dataset `team/texts` on a hub.

    job: the flags that name a job.
    """

    environment: dict[str, str]
    client: Client
    output: str
    source: str = "--dataset=team/texts"

    @property
    def job(self) -> tuple[str, ...]:
        return (
            self.source,
            f"--output={self.output}",
            "--shard_tokens=100000",
            "--test_fraction=0.1",
        )

    def shards(self) -> dict[str, bytes]:
        folder = f"{self.output.removeprefix('gs://bucket/')}/"
        names = [name for split in ("test/", "train/") for name in self.names(folder + split)]
        return {n.removeprefix(folder): self.read(n) for n in names if not n.endswith("/")}

    def names(self, folder: str) -> list[str]:
        return [blob.name for blob in self.client.list_blobs("bucket", prefix=folder)]

    def read(self, name: str) -> bytes:
        content: bytes = self.client.bucket("bucket").blob(name).download_as_bytes()
        return content

    def start(self, program: Path | str, *flags: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(program), *flags],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, program: Path | str, *flags: str) -> Ended:
        process = self.start(program, *flags)
        out, err = process.communicate()
        return Ended(process.returncode, out, err)

    def build_here(self, *flags: str) -> Ended:
        return self.run(PROGRAM, *self.job, *flags)

    def submit(self, dataflow: DataflowServer, *flags: str) -> Ended:
        return self.build_here(*DATAFLOW, f"--dataflow_endpoint={dataflow.url}", *flags)

    def work(self, job: DataflowJob, folder: Path) -> None:
        """Does what Dataflow's workers do: runs the graph that was staged with a job."""
        file = folder / "pipeline.pb"
        file.write_bytes(graph_of(self, job).SerializeToString())
        worked = self.run(ROOT / "tests/support/graph_driver.py", str(file))
        assert worked.exit_code == 0, worked.err


@dataclass(frozen=True)
class Ended:
    exit_code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        return self.err.splitlines()[-1]


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def servers(
    hub: HubServer, sample: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Cloud]]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "texts/data").mkdir(parents=True)
    shutil.copy(sample, folder / "texts/data/train-00000.parquet")
    with gcs_server("bucket") as address, pytest.MonkeyPatch.context() as patch:
        hub.push("team/texts", folder / "texts")
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        environment = client_environment(address) | {
            "PYTHONPATH": str(ROOT / "tests"),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "home"),
        }
        client = Client()
        client.bucket("bucket").blob("in/a.parquet").upload_from_filename(sample)
        yield lambda name: Cloud(environment, client, f"gs://bucket/{name}")


@pytest.fixture
def cloud(servers: Callable[[str], Cloud], request: pytest.FixtureRequest) -> Cloud:
    return servers(request.node.name)


@pytest.fixture
def dataflow() -> Iterator[DataflowServer]:
    with DataflowServer() as server:
        yield server


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """The program that the image has for the launcher: one file in its own folder."""
    program = tmp_path / "template/main.py"
    program.parent.mkdir()
    shutil.copy(PROGRAM, program)
    return program


def launch(cloud: Cloud, launcher: Path, *parameters: str) -> tuple[Ended, str]:
    """Runs the launcher's command; returns how it ended and the name of its job file."""
    name = cloud.output.rpartition("/")[2]
    job_file = f"staging/template_launches/{name}/job_object"
    # As the launcher's log shows it ("Executing: ..."), with all values as `--name=value`.
    ended = cloud.run(
        launcher,
        "--runner=DataflowRunner",
        "--project=my-project",
        "--region=us-central1",
        f"--job_name={name.replace('_', '-')}",
        "--temp_location=gs://bucket/temp",
        "--staging_location=gs://bucket/staging",
        f"--template_location=gs://bucket/{job_file}",
        '--labels={\n   "goog-dataflow-provided-template-type" : "flex"\n}\n',
        "--max_num_workers=4",
        "--machine_type=n2-standard-4",
        "--service_account_email=worker@my-project.iam.gserviceaccount.com",
        "--an_option_of_a_later_launcher=1",
        *cloud.job,
        f"--sdk_container_image={IMAGE}",
        *parameters,
    )
    return ended, job_file


def graph_of(cloud: Cloud, job: DataflowJob) -> beam_runner_api_pb2.Pipeline:
    staged = job.environment.sdk_pipeline_options["options"]["pipelineUrl"]
    content = cloud.read(staged.removeprefix("gs://bucket/"))
    return beam_runner_api_pb2.Pipeline.FromString(content)


def steps_of(graph: beam_runner_api_pb2.Pipeline) -> set[str]:
    """The names of the outermost transforms."""
    names = {transform.unique_name for transform in graph.components.transforms.values()}
    return {name for name in names if "/" not in name and not name.startswith("ref_")}


def keys_of(graph: beam_runner_api_pb2.Pipeline) -> dict[str, str]:
    """How each grouping encodes its keys."""
    components = graph.components

    def coder(id_: str) -> str:
        found = components.coders[id_]
        name = found.spec.urn.removeprefix("beam:coder:").removesuffix(":v1")
        parts = ", ".join(map(coder, found.component_coder_ids))
        return f"{name}({parts})" if parts else name

    keys = {}
    for transform in components.transforms.values():
        if transform.spec.urn == "beam:transform:group_by_key:v1":
            (input_,) = transform.inputs.values()
            pairs = components.coders[components.pcollections[input_].coder_id]
            keys[transform.unique_name] = coder(pairs.component_coder_ids[0])
    return keys


def test_a_dry_run_translates_the_graph_and_starts_nothing(cloud: Cloud, tmp_path: Path) -> None:
    tokenizer = save(train("gpt2", ["some text"], 300), tmp_path / "tokenizer.json")
    cloud.client.bucket("bucket").blob("llama/tokenizer.json").upload_from_filename(tokenizer)
    flags = (*DATAFLOW, "--tokenizer=gs://bucket/llama/tokenizer.json", "--dry_run=True")
    ended = cloud.build_here(*flags)
    assert ended.exit_code == 0, ended.err
    assert "nothing was started" in ended.out
    assert cloud.names("temp/") == []
    folder = cloud.output.removeprefix("gs://bucket/")
    assert cloud.read(f"{folder}/metadata/tokenizer.json") == tokenizer.read_bytes()


def test_a_template_launch_writes_a_job_that_dataflow_can_start(
    cloud: Cloud, launcher: Path, sample: Path, tmp_path: Path
) -> None:
    cloud = replace(cloud, source="--input=gs://bucket/in/*.parquet")
    ended, job_file = launch(
        cloud, launcher, "--overwrite=false", "--keep_checkpoints=true", "--test_fraction=0.1"
    )
    assert ended.exit_code == 0, ended.err
    assert f"wrote the job to gs://bucket/{job_file}" in ended.out
    # Beam prints this after it has looked for credentials for 25 seconds.
    assert "Unable to find default credentials" not in ended.err

    job = DataflowJob.from_json(cloud.read(job_file), ignore_unknown_fields=False)
    assert job.type_.name == "JOB_TYPE_BATCH"
    assert job.labels == {"goog-dataflow-provided-template-type": "flex"}
    (pool,) = job.environment.worker_pools
    (harness,) = pool.sdk_harness_container_images
    assert harness.container_image == pool.worker_harness_container_image == IMAGE
    assert harness.use_single_core_per_container
    assert pool.autoscaling_settings.max_num_workers == 4
    assert pool.machine_type == "n2-standard-4"
    assert pool.disk_size_gb == 50
    assert not pool.num_threads_per_worker
    # The requirements are staged, and nothing of `__main__`.
    (package,) = pool.packages
    assert package.name == "submission_environment_dependencies.txt"
    assert package.location.removeprefix("storage.googleapis.com/bucket/") in cloud.names("staging")
    options = job.environment.sdk_pipeline_options["options"]
    assert options["sdk_location"] == "container"
    assert not options["save_main_session"]

    graph = graph_of(cloud, job)
    assert steps_of(graph) == STEPS
    manifest = [
        t for t in graph.components.transforms.values() if t.unique_name == "Commit/Manifest"
    ]
    assert len(manifest) == 1
    # A pickled key would be long, and one key could have two encodings.
    keys = keys_of(graph)
    assert keys["Report/GroupFiles"] == "varint"
    assert keys["Write/ByShard/Group"] == "kv(string_utf8, varint)"
    # No file names, no vocabulary.
    largest = max(len(t.SerializeToString()) for t in graph.components.transforms.values())
    assert largest < 20_000
    assert len(graph.SerializeToString()) < 200_000
    folder = cloud.output.removeprefix("gs://bucket/")
    assert {f"{folder}/metadata/job.json", f"{folder}/metadata/vocabulary.tiktoken"} <= set(
        cloud.names(folder)
    )
    cloud.work(job, tmp_path)
    assert cloud.shards() == oracle_by_text(
        read_texts(sample), shard_tokens=100_000, fraction="0.1"
    )


def test_status_names_the_job_of_a_launch_and_the_dataset_does_not(
    cloud: Cloud, launcher: Path, dataflow: DataflowServer, tmp_path: Path
) -> None:
    job_id = "2026-11-25_01_02_03-456"
    place = f"--template_location=gs://bucket/staging/template_launches/{job_id}/job_object"
    ended, _ = launch(cloud, launcher, place)
    assert ended.exit_code == 0, ended.err
    console = f"https://console.cloud.google.com/dataflow/jobs/us-central1/{job_id}"
    found = status(cloud.output)
    assert (found.job_id, found.console) == (job_id, f"{console}?project=my-project")
    assert f"Dataflow's job {job_id}: {console}" in "\n".join(describe_status(found))

    # A later run of the job replaces it, and is what a failed one leaves.
    dataflow.expect(states=("RUNNING", "FAILED"), errors=("no quota",))
    assert cloud.submit(dataflow).exit_code == 1
    assert status(cloud.output).job_id == dataflow.jobs[0].id

    # Nothing of it is in the dataset, which is that of a run elsewhere.
    assert cloud.build_here().exit_code == 0
    folder = cloud.output.removeprefix("gs://bucket/")
    assert status(cloud.output).job_id is None
    for name in cloud.names(f"{folder}/"):
        assert "checkpoints/" not in name or name.endswith("/"), name
        assert name.endswith("/") or dataflow.jobs[0].id.encode() not in cloud.read(name)
    before = cloud.read(f"{folder}/metadata/manifest.json")
    dataflow.expect(
        run=lambda job: cloud.work(DataflowJob.from_json(json.dumps(job.body)), tmp_path)
    )
    again = cloud.submit(dataflow, "--overwrite")
    assert again.exit_code == 0, again.err
    assert cloud.read(f"{folder}/metadata/manifest.json") == before


def test_a_launch_for_a_finished_output_is_a_job_that_does_nothing(
    cloud: Cloud, launcher: Path
) -> None:
    assert cloud.build_here().exit_code == 0
    before = {blob.name: blob.generation for blob in cloud.client.list_blobs("bucket")}
    ended, job_file = launch(cloud, launcher)
    assert ended.exit_code == 0, ended.err
    graph = graph_of(cloud, DataflowJob.from_json(cloud.read(job_file)))
    assert steps_of(graph) == {"AlreadyFinished"}
    after = {blob.name: blob.generation for blob in cloud.client.list_blobs("bucket")}
    assert before.items() <= after.items()


def test_a_submission_runs_to_its_end(
    cloud: Cloud, dataflow: DataflowServer, sample: Path, tmp_path: Path
) -> None:
    dataflow.expect(
        run=lambda job: cloud.work(DataflowJob.from_json(json.dumps(job.body)), tmp_path)
    )
    ended = cloud.submit(dataflow)
    assert ended.exit_code == 0, ended.err
    assert ended.out.startswith("finished in ")
    assert "1,063 documents" in ended.out
    assert "Unable to find default credentials" not in ended.err
    assert cloud.shards() == oracle_by_text(
        read_texts(sample), shard_tokens=100_000, fraction="0.1"
    )
    # The job's address is in the log, but not all that was sent.
    assert "console.cloud.google.com/dataflow/jobs/us-central1/" in ended.err
    assert "sdk_pipeline_options" not in ended.err

    (job,) = dataflow.jobs
    assert job.seen[0] == "PENDING"
    assert job.seen[-1] == "DONE"
    assert job.name.startswith("fineshards-")
    sent = DataflowJob.from_json(json.dumps(job.body))
    assert steps_of(graph_of(cloud, sent)) == STEPS
    again = cloud.submit(dataflow)
    assert again.out.startswith("already finished, nothing to do")
    assert len(dataflow.jobs) == 1


def test_a_failed_job_ends_in_the_sentence_of_its_step(
    cloud: Cloud, dataflow: DataflowServer
) -> None:
    # The form of Dataflow's messages; the traceback comes first, the summary after it.
    worker = (
        "Error message from worker: generic::unknown: Traceback (most recent call last):\n"
        '  File "apache_beam/runners/common.py", line 1498, in process\n'
        "fineshards.errors.InputError: data/train-00000.parquet has no column 'content'. Name "
        "one that it has. [while running 'Discover/Footers-ptransform-27']\n\npassed through:\n==>"
        "\n"
        "    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1335"
    )
    summary = (
        "Workflow failed. Causes: S02:Discover/Footers failed., The job failed because a work item "
        "has failed 4 times."
    )
    dataflow.expect(states=("RUNNING", "RUNNING", "FAILED"), errors=(worker, summary))
    ended = cloud.submit(dataflow)
    assert ended.exit_code == 1
    assert ended.out == ""
    assert ended.sentence == (
        "fineshards: data/train-00000.parquet has no column 'content'. Name one that it has."
    )


def test_a_job_that_is_done_without_a_dataset_is_an_error(
    cloud: Cloud, dataflow: DataflowServer
) -> None:
    dataflow.expect(states=("RUNNING", "DONE"))
    ended = cloud.submit(dataflow)
    assert ended.exit_code == 1
    assert f"{cloud.output}/metadata/manifest.json is not there" in ended.sentence


def test_a_second_job_is_refused_while_the_first_runs_even_unwatched(
    cloud: Cloud, dataflow: DataflowServer
) -> None:
    dataflow.expect(states=("RUNNING",))
    flags = (*cloud.job, *DATAFLOW, f"--dataflow_endpoint={dataflow.url}")
    first = cloud.start(PROGRAM, *flags)
    try:
        while not any(request.path.endswith("/messages") for request in dataflow.requests):
            assert first.poll() is None, first.stderr and first.stderr.read()
            time.sleep(0.1)
        second = cloud.submit(dataflow)
        assert second.exit_code == 1
        (job,) = dataflow.jobs
        assert f"already has an active job named {job.name}, id {job.id}" in second.sentence
        first.send_signal(signal.SIGINT)
        _, err = first.communicate()
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 1
    assert err.splitlines()[-1].startswith("fineshards: interrupted, but the job continues")
    assert job.state == "RUNNING"


def test_an_option_that_beam_misses_is_one_sentence(cloud: Cloud) -> None:
    flags = [flag for flag in DATAFLOW if not flag.startswith("--project")]
    ended = cloud.build_here(*flags)
    assert ended.exit_code == 2
    assert "Missing required option: project" in ended.sentence
    assert "Traceback" not in ended.err
