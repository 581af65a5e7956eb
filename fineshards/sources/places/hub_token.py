"""The token for the Hugging Face hub from Google's Secret Manager, where no environment has it.

Dataflow's workers get no environment variables. They fetch the token themselves, by the name of the
secret, which is all that a job's flags, graph and logs contain.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import FineshardsError, UsageError
from fineshards.extras import require
from fineshards.storage.retries import TRANSIENT_STATUS, retried

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


class _TransientError(FineshardsError):
    """An answer that may be another one later."""


def _fetch(secret: str) -> str:
    require("google.auth", "google-auth", "gcs")
    import google.auth
    import requests
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import AuthorizedSession

    endpoint = os.environ.get(_ENDPOINT) or "https://secretmanager.googleapis.com/"
    refuse_secrets_in_endpoint(endpoint, _ENDPOINT)
    new_session: Any = AuthorizedSession  # google-auth is typed, but not this

    def attempt() -> Any:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        with new_session(credentials) as session:
            response = session.get(
                f"{endpoint.rstrip('/')}/v1/{secret}:access", timeout=_TIMEOUT_SECONDS
            )
        if response.status_code in TRANSIENT_STATUS:
            raise _TransientError(f"Secret Manager answers {response.status_code}")
        return response

    def pause(error: Exception) -> float | None:
        passing = (requests.ConnectionError, TransportError, _TransientError)
        return 0.0 if isinstance(error, passing) else None

    try:
        response = retried(attempt, pause, lambda error: f"{secret}: {type(error).__name__}")
    except (GoogleAuthError, requests.RequestException, _TransientError) as error:
        raise UsageError(f"--hf_token_secret {secret} cannot be read: {error}") from error
    if response.status_code != 200:
        raise UsageError(
            f"--hf_token_secret {secret} cannot be read: Secret Manager answers "
            f"{response.status_code}. Check the name, that secretmanager.googleapis.com is "
            "enabled, and that the account has roles/secretmanager.secretAccessor on the secret."
        )
    try:
        token = base64.b64decode(response.json()["payload"]["data"]).decode("ascii").strip()
    except (ValueError, KeyError, TypeError, binascii.Error):
        token = ""
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(f"--hf_token_secret {secret}: the secret is not a token, one ASCII word.")
    return token
