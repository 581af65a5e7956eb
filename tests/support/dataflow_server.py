"""A Dataflow service on localhost: the part of its REST API that submits, launches, watches jobs.

    with DataflowServer() as server:
        server.expect(states=("QUEUED", "RUNNING", "FAILED"), errors=("why",))
        ... --dataflow_endpoint={server.url} --no_auth ...
        server.jobs[0].body, server.jobs[0].parameters, server.requests

Each job goes through the states given to `expect` (default: PENDING, RUNNING, DONE), one step per
request for it, and stays in the last one. `errors` are its error messages, readable once it runs.
`run` lets a job do real work: it is called with the job, in its own thread, when the job is
created. The last state is not reached before it returns. If it raises, the last state is FAILED and
the exception's text is an error message.

As in the real service, a job's name is taken while a job of that name is active. A request for a
second one returns the first, under its own client request id, or fails with 409 if the request has
no such id. Template launches never have one.

Served below /v1b3/projects/P: POST and GET locations/L/jobs, GET jobs and jobs:aggregated, GET and
PUT locations/L/jobs/ID, GET of its messages and metrics, POST locations/L/flexTemplates:launch.
Enums are given by name, which all of Google's clients accept. Metrics are always empty.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.served import Handler, Served

TERMINAL = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}
TIME = "2026-11-21T00:00:00Z"
_PROJECT = r"/v1b3/projects/(?P<project>[^/:]+)"
_LOCATION = rf"{_PROJECT}/locations/(?P<location>[^/:]+)"
_JOB = rf"{_LOCATION}/jobs/(?P<job>[^/:]+)"
# The flags of a submission besides input and output. The image is never pulled.
IMAGE = "us-central1-docker.pkg.dev/my-project/fineshards/fineshards:0.1.0"
DATAFLOW = (
    "--runner=DataflowRunner",
    "--project=my-project",
    "--region=us-central1",
    "--temp_location=gs://bucket/temp",
    f"--sdk_container_image={IMAGE}",
)


@dataclass
class Job:
    """A job. body: of the request that created it. launched: whether from a template."""

    id: str
    name: str
    project: str
    location: str
    body: dict[str, Any]
    launched: bool
    states: list[str]
    errors: list[str]
    seen: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def state(self) -> str:
        return self.states[0]

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a template launch."""
        parameters: dict[str, str] = self.body["launchParameter"].get("parameters", {})
        return parameters

    def step(self) -> None:
        """Goes to the next state; to the last one only when `run` has returned."""
        busy = self.thread is not None and self.thread.is_alive()
        if len(self.states) > (2 if busy else 1):
            del self.states[0]

    def describe(self) -> dict[str, Any]:
        self.seen.append(self.state)
        return {
            "id": self.id,
            "name": self.name,
            "projectId": self.project,
            "location": self.location,
            "type": "JOB_TYPE_BATCH",
            "currentState": f"JOB_STATE_{self.state}",
            "currentStateTime": TIME,
            "createTime": TIME,
            "startTime": TIME,
        }


@dataclass(frozen=True)
class Request:
    """A request that was served; body: None if it had none."""

    method: str
    path: str
    body: Any
    status: int


class ServiceError(Exception):
    def __init__(self, code: int, status: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class DataflowServer(Served):
    """Use as a context manager. `url` contains localhost, which makes Beam use REST."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        # How many of the next lists leave out all jobs, as if they were not listed yet.
        self.hidden = 0
        self.expect()
        self.url = f"http://localhost:{self.listen(_Handler, service=self)}"

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for job in self.jobs:
            if job.thread is not None:
                job.thread.join()

    def expect(
        self,
        states: tuple[str, ...] = ("PENDING", "RUNNING", "DONE"),
        errors: tuple[str, ...] = (),
        run: Callable[[Job], object] | None = None,
    ) -> None:
        """Sets the behaviour of all later jobs."""
        self._states, self._errors, self._run = states, errors, run

    def active(self, name: str) -> Job | None:
        for job in self.jobs:
            if job.name == name and job.state not in TERMINAL:
                return job
        return None

    def create(self, name: str, where: dict[str, str], body: Any, launched: bool) -> Job:
        number = len(self.jobs)
        job = Job(
            f"2026-11-21_00_00_{number:02}-{4000 + number}",
            name,
            where["project"],
            where["location"],
            body,
            launched,
            list(self._states),
            list(self._errors),
        )
        if self._run is not None:
            job.thread = threading.Thread(target=self._work, args=(job, self._run))
            job.thread.start()
        self.jobs.append(job)
        return job

    def _work(self, job: Job, run: Callable[[Job], object]) -> None:
        try:
            run(job)
        except Exception as error:
            job.states[-1] = "FAILED"
            job.errors.append(str(error))


class _Handler(Handler):
    service: DataflowServer

    def answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        content = self.read_body()
        body = json.loads(content) if content else None
        try:
            with self.service.lock:
                status, answer = 200, self._route(path, query, body)
        except ServiceError as error:
            status = error.code
            answer = {"error": {"code": status, "message": str(error), "status": error.status}}
        self.service.requests.append(Request(self.command, path, body, status))
        sent = json.dumps(answer).encode()
        self.send(status, sent, {"Content-Type": "application/json; charset=UTF-8"})

    def _route(self, path: str, query: dict[str, str], body: Any) -> dict[str, Any]:
        routes: list[tuple[str, str, Callable[..., dict[str, Any]]]] = [
            ("POST", rf"{_LOCATION}/jobs", self._create),
            ("POST", rf"{_LOCATION}/flexTemplates:launch", self._launch),
            ("GET", rf"{_LOCATION}/jobs", self._list),
            ("GET", rf"{_PROJECT}/jobs(:aggregated)?", self._list),
            ("GET", _JOB, self._get),
            ("PUT", _JOB, self._update),
            ("GET", rf"{_JOB}/messages", self._messages),
            ("GET", rf"{_JOB}/metrics", self._metrics),
        ]
        for method, pattern, do in routes:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                return do(match.groupdict(), query, body)
        raise ServiceError(404, "NOT_FOUND", f"nothing at {self.command} {path}")

    def _create(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        there = self.service.active(body["name"])
        if there is None:
            job = self.service.create(body["name"], where, body, launched=False)
        elif "clientRequestId" in body and "clientRequestId" in there.body:
            job = there
        else:
            raise self._taken(body["name"])
        described = job.describe()
        if "clientRequestId" in job.body:
            described["clientRequestId"] = job.body["clientRequestId"]
        return described

    def _launch(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        name = body["launchParameter"]["jobName"]
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?", name):
            raise ServiceError(400, "INVALID_ARGUMENT", f"invalid job name {name}")
        if self.service.active(name) is not None:
            raise self._taken(name)
        return {"job": self.service.create(name, where, body, launched=True).describe()}

    def _taken(self, name: str) -> ServiceError:
        return ServiceError(
            409,
            "ALREADY_EXISTS",
            f"(78f666ea16e50f79): There is already an active job named {name}. If you want to "
            "submit a second job, try again by setting a different name.",
        )

    def _list(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        if self.service.hidden:
            self.service.hidden -= 1
            return {"jobs": []}
        jobs = [
            job
            for job in self.service.jobs
            if job.project == where["project"]
            and where.get("location", job.location) == job.location
            and query.get("name", job.name) == job.name
        ]
        if query.get("filter") == "ACTIVE":
            jobs = [job for job in jobs if job.state not in TERMINAL]
        elif query.get("filter") == "TERMINATED":
            jobs = [job for job in jobs if job.state in TERMINAL]
        return {"jobs": [job.describe() for job in jobs]}

    def _job(self, where: dict[str, str]) -> Job:
        for job in self.service.jobs:
            if (job.id, job.project, job.location) == (
                where["job"],
                where["project"],
                where["location"],
            ):
                return job
        raise ServiceError(404, "NOT_FOUND", f"no job {where['job']}")

    def _get(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        job = self._job(where)
        described = job.describe()
        job.step()
        return described

    def _update(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        """Only a cancellation can be requested, by number (5) or name."""
        job = self._job(where)
        if body.get("requestedState") not in (5, "JOB_STATE_CANCELLED"):
            raise ServiceError(400, "INVALID_ARGUMENT", f"cannot do {body}")
        if job.state not in TERMINAL:
            job.states[:] = ["CANCELLING", "CANCELLED"]
        return job.describe()

    def _messages(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        job = self._job(where)
        begun = job.state == "RUNNING" or job.state in TERMINAL
        messages = [
            {
                "id": str(number),
                "time": TIME,
                "messageText": text,
                "messageImportance": "JOB_MESSAGE_ERROR",
            }
            for number, text in enumerate(job.errors if begun else [])
        ]
        return {"jobMessages": messages}

    def _metrics(self, where: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        self._job(where)
        return {"metricTime": TIME, "metrics": []}
