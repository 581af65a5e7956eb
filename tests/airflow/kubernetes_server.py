"""A Kubernetes cluster on 127.0.0.1 whose pods are processes of this machine.

    with KubernetesServer({"PATH": ...}) as cluster:
        config = cluster.write_config(folder)       # a kubeconfig file
        ... a client that creates pods ...
        cluster.pods, cluster.created

Of a pod's first container, the command and arguments are run in the environment given here; the
image is only recorded. It serves what KubernetesPodOperator requests: pods are listed by labels,
created, read, patched (labels) and deleted, and their logs followed. There are never events.
"""

import json
import re
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.served import Handler, Served

_PODS = r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Pod:
    """A pod and its process."""

    def __init__(self, manifest: dict[str, Any], environment: dict[str, str]) -> None:
        self.manifest = manifest
        container = manifest["spec"]["containers"][0]
        self.image: str = container["image"]
        self.command = [*container.get("command", []), *container.get("args", [])]
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started = _now()
        self.output = ""
        self.finished = ""
        self._done = threading.Thread(target=self._read)
        self._done.start()

    def _read(self) -> None:
        self.output = self.process.communicate()[0]
        self.finished = _now()

    def wait(self) -> str:
        """Waits for the process to end; returns its output."""
        self._done.join()
        return self.output

    def kill(self) -> None:
        self.process.kill()
        self._done.join()

    def describe(self) -> dict[str, Any]:
        container = self.manifest["spec"]["containers"][0]
        state: dict[str, Any] = {"running": {"startedAt": self.started}}
        phase = "Running"
        if self.finished:
            code = self.process.returncode
            phase = "Failed" if code else "Succeeded"
            state = {
                "terminated": {
                    "exitCode": code,
                    "startedAt": self.started,
                    "finishedAt": self.finished,
                    "reason": "Error" if code else "Completed",
                }
            }
        status = {
            "name": container["name"],
            "image": self.image,
            "imageID": self.image,
            "ready": not self.finished,
            "restartCount": 0,
            "state": state,
        }
        return self.manifest | {"status": {"phase": phase, "containerStatuses": [status]}}


class KubernetesServer(Served):
    """Use as a context manager. `created` has all pods, even deleted ones."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.pods: dict[str, Pod] = {}
        self.created: list[Pod] = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.listen(_Handler, cluster=self)}"

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for pod in self.created:
            pod.kill()

    def write_config(self, folder: Path) -> Path:
        """Writes a kubeconfig file for this server. JSON is YAML."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "here",
        }
        path = folder / "kube_config"
        path.write_text(json.dumps(config))
        return path

    def create(self, namespace: str, manifest: dict[str, Any]) -> Pod:
        manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-{len(self.created)}"}
        pod = Pod(manifest, self.environment)
        self.pods[manifest["metadata"]["name"]] = pod
        self.created.append(pod)
        return pod


class _Handler(Handler):
    cluster: KubernetesServer

    def answer(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        content = self.read_body()
        body = json.loads(content) if content else {}
        status, answer = self._route(url.path, query, body)
        sent = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        kind = "text/plain" if isinstance(answer, str) else "application/json"
        self.send(status, sent, {"Content-Type": kind})

    def _route(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if re.fullmatch(r"/api/v1/namespaces/[^/]+/events", path):
            return 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []}
        match = re.fullmatch(rf"{_PODS}(/(?P<name>[^/]+)(?P<log>/log)?)?", path)
        if match is None:
            return 404, _failure(404, f"nothing at {self.command} {path}")
        name = match["name"]
        with self.cluster.lock:
            if name is None and self.command == "POST":
                return 201, self.cluster.create(match["namespace"], body).describe()
            if name is None:
                pods = [
                    pod.describe()
                    for pod in self.cluster.pods.values()
                    if _selected(pod, query.get("labelSelector", ""))
                ]
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
            pod = self.cluster.pods.get(name)
            if pod is None:
                return 404, _failure(404, f"no pod {name}")
            if self.command == "PATCH":
                pod.manifest["metadata"].setdefault("labels", {}).update(body["metadata"]["labels"])
            if self.command == "DELETE":
                pod.kill()
                del self.cluster.pods[name]
            if match["log"] is None:
                return 200, pod.describe()
        # Logs are followed until the container ends.
        return 200, "".join(f"{_now()} {line}\n" for line in pod.wait().splitlines())


def _failure(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


def _selected(pod: Pod, selector: str) -> bool:
    """Whether the pod's labels match all parts of the selector: `a=b`, `a!=b` or `!a`."""
    labels = pod.manifest["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, unequal, value = part.partition("!=")
        if unequal:
            fits = labels.get(name) != value
        elif part.startswith("!"):
            fits = part[1:] not in labels
        else:
            name, _, value = part.partition("=")
            fits = labels.get(name) == value
        if not fits:
            return False
    return True
