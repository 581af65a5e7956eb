"""Dataflow without a submission: flags, refused jobs, and the sentences for its errors."""

import sys

import pytest
from support.checkout import ROOT
from support.dataflow_server import DATAFLOW

from fineshards.cli.build_command import main
from fineshards.cli.options import add_build_flags, parse_build_flags
from fineshards.parser import Parser
from fineshards.pipeline.beam_errors import explain
from fineshards.pipeline.runners.dataflow import dataflow_defaults, runs_on_dataflow
from tools.template_metadata import metadata


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            "Dataflow pipeline failed. State: CANCELLED, Error:\nNone",
            "the Dataflow job ended as CANCELLED. Finished work",
        ),
        (
            "Dataflow pipeline failed. State: FAILED, Error:\nWorkflow failed. Causes: no\nquota.",
            "the Dataflow job ended as FAILED: Workflow failed. Causes: no quota. Finished work",
        ),
        (
            "Pipeline out-1_2a failed in state FAILED: java.net.Exception: State: gone\n  Refused.",
            "the job ended as FAILED: java.net.Exception: State: gone Refused. Finished work is",
        ),
    ],
)
def test_a_job_that_did_not_end_well_is_one_sentence(error: str, sentence: str) -> None:
    explained = explain(RuntimeError(error))
    assert str(explained).startswith(sentence)


def test_an_unexpected_error_is_not_shortened() -> None:
    text = "State: FAILED, Error:\nTraceback (most recent call last):\nKeyError: 'x'"
    assert explain(RuntimeError(f"Dataflow pipeline failed. {text}")) is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dataset=a/b", "--output=out", *DATAFLOW], "--output out is on this machine"),
        (["--input=/in/*.parquet", "--output=gs://b/o", *DATAFLOW], "--input /in/*.parquet is on"),
        ([f"--dataset={ROOT}", "--output=gs://b/o", *DATAFLOW], f"--dataset {ROOT} is on this"),
        (["--dataset=a/b", "--output=gs://b/o", *DATAFLOW[:-1]], "--sdk_container_image"),
    ],
)
def test_a_job_that_workers_can_never_finish_is_refused(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert sentence in capsys.readouterr().err


def test_dataflow_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.dataflow", None)
    assert main(["--dataset=a/b", "--output=gs://b/o", *DATAFLOW]) == 2
    assert capsys.readouterr().err == (
        "fineshards: google-cloud-dataflow-client is not installed. Install it with: "
        "pip install 'fineshards[dataflow]'\n"
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--runner=DataflowRunner"], True),
        (["--project=p", "--runner", "dataflow", "--region=r"], True),
        (["--runner=apache_beam.runners.DataflowRunner"], True),
        (["--runner=FlinkRunner", "--job_name=dataflow"], False),
        (["--job_name=DataflowRunner"], False),
    ],
)
def test_dataflow_is_recognized_by_every_name_that_beam_takes(
    flags: list[str], expected: bool
) -> None:
    parser = Parser()
    add_build_flags(parser)
    config = parse_build_flags(parser, ["--dataset=a/b", "--output=gs://b/o", *flags])
    assert runs_on_dataflow(config) is expected


def test_flags_of_the_user_take_precedence_over_defaults() -> None:
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        PipelineOptions,
        SetupOptions,
        WorkerOptions,
    )

    parser = Parser()
    add_build_flags(parser)

    def options(*flags: str) -> PipelineOptions:
        job = parse_build_flags(parser, ["--dataset=a/b", "--output=gs://b/o/", *DATAFLOW, *flags])
        return PipelineOptions([*dataflow_defaults(job), *job.beam_args])

    plain = options()
    assert plain.view_as(SetupOptions).save_main_session is False
    assert plain.view_as(SetupOptions).sdk_location == "container"
    name = plain.view_as(GoogleCloudOptions).job_name
    assert name == options("--region=europe-west4").view_as(GoogleCloudOptions).job_name
    # The template's console shows the same size.
    (disk,) = (p for p in metadata()["parameters"] if p["name"] == "disk_size_gb")
    assert plain.view_as(WorkerOptions).disk_size_gb == int(disk["defaultValue"])
    own = options(
        "--save_main_session", "--sdk_location=default", "--job_name=mine", "--disk_size_gb=80"
    )
    assert own.view_as(WorkerOptions).disk_size_gb == 80
    assert own.view_as(SetupOptions).save_main_session is True
    assert own.view_as(SetupOptions).sdk_location == "default"
    assert own.view_as(GoogleCloudOptions).job_name == "mine"
