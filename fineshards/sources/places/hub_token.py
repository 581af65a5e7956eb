"""The token for the Hugging Face hub from Google's Secret Manager, where no environment has it.

Dataflow's workers get no environment variables. They fetch the token themselves, by the name of the
secret, which is all that a job's flags, graph and logs contain.
"""

import base64
import binascii
import os
import re
from typing import Any

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import UsageError
from fineshards.extras import require
from fineshards.storage.retries import TRANSIENT_STATUS, retried, translating

# As gcloud's, for a private address, or a server of tests.
_ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TIMEOUT_SECONDS = 60.0

# The secrets that this process, or the one that it was forked from, has fetched.
_fetched: set[str] = set()


def provide_token(secret: str | None) -> None:
    """Sets HF_TOKEN of this process, and of those that it starts, from a secret; once.

    secret: `projects/P/secrets/S/versions/V`; None leaves the environment as it is. Raises
    UsageError if the secret cannot be read. The token is in no message.
    """
    if secret is None or secret in _fetched:
        return
    os.environ["HF_TOKEN"] = _fetch(secret)
    _fetched.add(secret)


def _fetch(secret: str) -> str:
    require("google.auth", "google-auth", "gcs")
    import google.auth
    import requests
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import AuthorizedSession

    endpoint = os.environ.get(_ENDPOINT) or "https://secretmanager.googleapis.com/"
    refuse_secrets_in_endpoint(endpoint, _ENDPOINT)
    new_session: Any = AuthorizedSession  # google-auth is typed, but not this

    def attempt() -> str:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        with new_session(credentials) as session:
            url = f"{endpoint.rstrip('/')}/v1/{secret}:access"
            response = session.get(url, timeout=_TIMEOUT_SECONDS)
        response.raise_for_status()
        return base64.b64decode(response.json()["payload"]["data"]).decode(errors="replace").strip()

    def status(error: Exception) -> int | None:
        return getattr(getattr(error, "response", None), "status_code", None)

    def pause(error: Exception) -> float | None:
        broken = isinstance(error, requests.ConnectionError | TransportError)
        return 0.0 if broken or status(error) in TRANSIENT_STATUS else None

    def reason(error: Exception, *_: str) -> str | None:
        if isinstance(error, requests.HTTPError):
            return (
                f"Secret Manager answers {status(error)}. Check the name, that "
                "secretmanager.googleapis.com is enabled, and that the account has "
                "roles/secretmanager.secretAccessor on the secret."
            )
        if isinstance(error, KeyError | TypeError | binascii.Error | requests.JSONDecodeError):
            return (
                f"the answer holds no secret. Check that this version has a value, and {_ENDPOINT}."
            )
        return (
            str(error) if isinstance(error, GoogleAuthError | requests.RequestException) else None
        )

    flag = f"--hf_token_secret {secret}"
    with translating(reason, "read", flag, UsageError):
        token = retried(attempt, pause, lambda error: f"{secret}: {type(error).__name__}")
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(f"{flag} cannot be used: the secret is not a token, one ASCII word.")
    return token
