"""A Hugging Face Hub on 127.0.0.1: the part of its protocol that finds and reads files.

A repository is a history of folders on disk. Pushing a folder creates a commit and moves a branch;
earlier commits remain. Like the hub, the server keeps data files in LFS: it redirects their
downloads and identifies them by the SHA-256 of their content.
"""

import hashlib
import json
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from support.served import Handler, Served

LFS_ENDINGS = (".parquet", ".gz", ".zst")
API = re.compile(
    r"/api/datasets/([^/]+(?:/[^/]+?)?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?"
)
# Datasets, and models without a prefix.
RESOLVE = re.compile(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
LFS = re.compile(r"/lfs/([0-9a-f]{64})")


@dataclass
class Repository:
    """A repository. token: the only one that can see it (private) or read its files (gated)."""

    commits: dict[str, Path] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    gated: bool = False
    broken: bool = False

    def allows(self, token: str | None) -> bool:
        return self.token is None or token == self.token


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    status: int
    sent: int


class HubError(Exception):
    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class HubServer(Served):
    """The server, as a context manager. `url` is the value for HF_ENDPOINT."""

    def __init__(self, page_size: int = 1000) -> None:
        self.page_size = page_size
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        # Requests for the content of files that are still to fail.
        self.outage = 0
        self.lfs: dict[str, Path] = {}
        self.lock = threading.Lock()
        port = self.listen(_Handler, hub=self)
        self.url = f"http://127.0.0.1:{port}"
        # Content is on another host than the hub, at addresses that are signed and expire.
        self.stored_at = f"http://localhost:{port}"
        self.signature = 0
        self.expires_after: int | None = None  # requests
        # How often files may still be asked for in this window; when the hub says the next begins.
        self.resolves_left: int | None = None
        self.reset_seconds = 200

    def push(self, name: str, folder: Path, branch: str = "main") -> str:
        """Commits the folder and returns the commit. The folder must not change afterwards."""
        repository = self.repositories.setdefault(name, Repository())
        commit = hashlib.sha1(f"{name} {folder}".encode()).hexdigest()
        repository.commits[commit] = folder
        repository.branches[branch] = commit
        return commit

    def paths(self, method: str, part: str) -> list[str]:
        return [r.path for r in self.requests if r.method == method and part in r.path]


class _Handler(Handler):
    hub: HubServer

    def answer(self) -> None:
        """Of requests to other addresses, for which tests use this server as the proxy, too."""
        if self.command == "CONNECT":
            self._send(502, b"")
            return
        url = urlsplit(self.path)
        form = parse_qs(self.read_body().decode())
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        try:
            if match := API.fullmatch(url.path):
                self._api(match, query, form)
            elif self.hub.outage and url.path.startswith(("/datasets", "/lfs")):
                self.hub.outage -= 1
                raise HubError(503, None, "Service unavailable")
            elif match := RESOLVE.fullmatch(url.path):
                self._resolve(match)
            elif match := LFS.fullmatch(url.path):
                self._check_signature(int(query["signed"]))
                self._send_range(self.hub.lfs[match[1]], {})
            else:
                raise HubError(404, None, "Sorry, we can't find the page you are looking for.")
        except HubError as error:
            headers = {"X-Error-Message": str(error)}
            if error.status == 429:
                headers["RateLimit"] = f'"resolvers";r=0;t={self.hub.reset_seconds}'
            if error.code:
                headers["X-Error-Code"] = error.code
            self._send(error.status, json.dumps({"error": str(error)}).encode(), headers)

    def _check_signature(self, number: int) -> None:
        with self.hub.lock:
            if number != self.hub.signature:
                raise HubError(403, None, "Request has expired")
            if self.hub.expires_after is not None:
                self.hub.expires_after -= 1
                if self.hub.expires_after == 0:
                    self.hub.signature += 1

    def _token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def _repository(self, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or not (repository.gated or repository.allows(self._token())):
            # The hub does not reveal which names exist without access.
            if self._token() is None:
                raise HubError(401, "RepoNotFound", "Invalid username or password.")
            raise HubError(404, "RepoNotFound", "Repository not found")
        if repository.broken:
            raise HubError(500, None, "Internal error")
        return repository

    def _commit(self, repository: Repository, revision: str) -> tuple[str, Path]:
        revision = unquote(revision)
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    def _api(self, match: re.Match[str], query: dict[str, str], form: dict[str, list[str]]) -> None:
        name, verb, revision, path = match.groups()
        repository = self._repository(name)
        commit, root = self._commit(repository, revision or "main")
        if verb == "tree":
            self._tree(root, unquote(path or ""), query)
        elif verb == "paths-info":
            if sum(map(len, form.values())) > 1000:
                raise HubError(413, None, "too many parameters")
            found = [root / path for path in form["paths"] if (root / path).exists()]
            self._send_json([self._describe(root, path) for path in found])
        else:
            files = sorted(path for path in root.rglob("*") if path.is_file())
            siblings = [{"rfilename": path.relative_to(root).as_posix()} for path in files]
            card = _card_data(root / "README.md")
            self._send_json({"id": name, "sha": commit, "siblings": siblings, "cardData": card})

    def _tree(self, root: Path, path: str, query: dict[str, str]) -> None:
        if not (root / path).is_dir():
            raise HubError(404, "EntryNotFound", f"{path} does not exist")
        pattern = "**/*" if query["recursive"].lower() == "true" else "*"
        entries = sorted((root / path).glob(pattern))
        start = int(query.get("cursor", 0))
        stop = start + self.hub.page_size
        headers = {}
        if stop < len(entries):
            url = f"{self.hub.url}{urlsplit(self.path).path}?recursive={query['recursive']}"
            headers["Link"] = f'<{url}&cursor={stop}>; rel="next"'
        self._send_json([self._describe(root, entry) for entry in entries[start:stop]], headers)

    def _describe(self, root: Path, path: Path) -> dict[str, object]:
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            oid = hashlib.sha1(name.encode()).hexdigest()
            return {"type": "directory", "oid": oid, "size": 0, "path": name}
        content = path.read_bytes()
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "oid": oid, "size": len(content), "path": name}
        if name.endswith(LFS_ENDINGS):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
        return entry

    def _resolve(self, match: re.Match[str]) -> None:
        with self.hub.lock:
            if self.hub.resolves_left == 0:
                self.hub.resolves_left = None  # the next window
                raise HubError(429, None, "You have reached your 'resolvers' rate limit.")
            if self.hub.resolves_left:
                self.hub.resolves_left -= 1
        repository = self._repository(match[1])
        if not repository.allows(self._token()):
            status = 401 if self._token() is None else 403
            raise HubError(status, "GatedRepo", f"Access to dataset {match[1]} is restricted.")
        commit, root = self._commit(repository, match[2])
        path = root / unquote(match[3])
        if not path.is_file():
            # The commit tells a client's cache where the file does not exist.
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            self._send(404, b"Entry not found", headers)
            return
        described = self._describe(root, path)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{described["oid"]}"'}
        if "lfs" not in described:
            self._send_range(path, headers)
            return
        sha256 = described["lfs"]["oid"]
        self.hub.lfs[sha256] = path
        headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(described["size"])}
        signed = f"{self.hub.stored_at}/lfs/{sha256}?signed={self.hub.signature}"
        self._send(302, b"", headers | {"Location": signed})

    def _send_range(self, path: Path, headers: dict[str, str]) -> None:
        content = path.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None:
            self._send(200, content, headers)
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, len(content))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(206, content[start:stop], headers)

    def _send_json(self, answer: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(answer).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        sent = 0 if self.command == "HEAD" else len(body)
        self.hub.requests.append(
            Request(self.command, unquote(self.path), self.headers.get("Range"), status, sent)
        )
        self.send(status, body, headers)


def _card_data(readme: Path) -> object:
    """What the YAML at the beginning of a README.md says, if it can be parsed."""
    parts = readme.read_text().split("---\n") if readme.is_file() else []
    with suppress(yaml.YAMLError):
        return yaml.safe_load(parts[1]) if len(parts) > 2 else None
    return None
