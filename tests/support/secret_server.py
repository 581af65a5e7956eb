"""Google's Secret Manager on 127.0.0.1, with the endpoint at which a service account gets tokens.

    with SecretServer({"projects/p/secrets/s/versions/latest": "value"}) as server:
        environment |= server.environment(folder)

Only the service account of the key that `environment` writes may read the secrets.
"""

import base64
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.served import Served

_ACCESS = "an-access-token"


class SecretServer(Served):
    """The server, as a context manager. failures: how many requests it will answer with 503."""

    def __init__(self, secrets: dict[str, str], failures: int = 0) -> None:
        self.secrets = secrets
        self.failures = failures
        self.read: list[str] = []
        self.url = f"http://127.0.0.1:{self.listen(_Handler, server_of=self)}"

    def environment(self, folder: Path) -> dict[str, str]:
        """What makes clients use this server, with a service account's key in a folder."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "1",
            "private_key": key.decode(),
            "client_email": "worker@p.iam.gserviceaccount.com",
            "token_uri": f"{self.url}/token",
        }
        path = folder / "account.json"
        path.write_text(json.dumps(account))
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(path),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": self.url,
        }


class _Handler(BaseHTTPRequestHandler):
    server_of: SecretServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/token":
            self._send(200, {"access_token": _ACCESS, "expires_in": 3600, "token_type": "Bearer"})
        else:
            self._send(404, {})

    def do_GET(self) -> None:
        service = self.server_of
        name = self.path.removeprefix("/v1/").removesuffix(":access")
        service.read.append(name)
        if self.headers["Authorization"] != f"Bearer {_ACCESS}":
            self._send(401, {})
        elif service.failures:
            service.failures -= 1
            self._send(503, {})
        elif name in service.secrets:
            data = base64.b64encode(service.secrets[name].encode()).decode()
            self._send(200, {"name": name, "payload": {"data": data} if data else {}})
        else:
            self._send(403, {"error": {"code": 403, "message": "Permission denied"}})

    def _send(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Requests are recorded, not printed."""
