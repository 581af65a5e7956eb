"""The gRPC interface of the tests' Dataflow service, which Airflow's triggers use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.cloud.dataflow_v1beta3 import GetJobRequest, Job, JobState
from support.dataflow_server import DataflowServer

_SERVICE = "google.dataflow.v1beta3.JobsV1Beta3"


class GrpcInterface:
    """Serves the jobs of the REST service without TLS; use as a context manager.

    address: host and port. closed: while it is True, every request fails with INTERNAL.
    """

    def __init__(self, service: DataflowServer) -> None:
        self.service = service
        self.closed = False
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._get_job,
            request_deserializer=GetJobRequest.deserialize,
            response_serializer=Job.serialize,
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, {"GetJob": handler})]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> GrpcInterface:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _get_job(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.closed:
            context.abort(grpc.StatusCode.INTERNAL, "the service is out of order")
        with self.service.lock:
            for job in self.service.jobs:
                if job.id == request.job_id:
                    state = JobState[f"JOB_STATE_{job.state}"]
                    job.seen.append(job.state)
                    job.step()
                    return Job(id=job.id, name=job.name, current_state=state)
        context.abort(grpc.StatusCode.NOT_FOUND, f"no job {request.job_id}")
        raise AssertionError("abort raises")
