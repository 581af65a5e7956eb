"""Turns the errors of the hub's libraries into one sentence: why a name cannot be resolved.

`flags` are the flags of the command line that give the name.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from fineshards.credentials import refuse_secrets_in_endpoint
from fineshards.errors import FineshardsError, InputError, UsageError


def http_error() -> type[Exception]:
    """The base class of the errors of huggingface_hub's HTTP client.

    The client is requests up to 0.36, httpx from 1.0 and httpx2 from 2.0.
    """
    from huggingface_hub.errors import HfHubHTTPError

    client = HfHubHTTPError.__bases__[0].__module__.partition(".")[0]
    found = [base for base in HfHubHTTPError.__mro__ if base.__module__.partition(".")[0] == client]
    return found[-1]


def quiet_hub() -> None:
    """Keeps huggingface_hub from printing: the terminal shows progress and errors of ours only."""
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    hub_logging.set_verbosity(logging.ERROR)
    for name in ("httpx", "httpx2"):  # which log every request at level INFO
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def hub_failures(
    flags: str, what: str = "dataset", revision: str = "--dataset_revision"
) -> Iterator[None]:
    """Turns failures of the hub into UsageError or InputError.

    what: kind of the repository. revision: how the user names a revision.
    """
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    refuse_secrets_in_endpoint(hub, "HF_ENDPOINT")
    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"{flags}: not a valid name on the hub: {error}") from error
    except errors.GatedRepoError as error:
        raise access_refused(flags, what) from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"{flags}: {hub} has no such {what}, or it is private. Check the name; "
            f"for a private {what}, set HF_TOKEN to a token with read access."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            f"{flags}: no such revision. Give a branch, a tag or a full commit hash, "
            f"or omit {revision} to read the main branch."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(
            f"{flags}: HF_HUB_OFFLINE is set, so {hub} is not contacted. Unset it, or give a "
            "local folder."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise access_refused(flags, what) from error
        raise InputError(f"{flags}: {hub} answered {status}. Try again later.") from error
    except (ConnectionError, http_error()) as error:
        raise InputError(
            f"{flags}: {hub} cannot be reached ({brief(error)}). "
            "Check the network and HF_ENDPOINT, or give a local folder."
        ) from error


def access_refused(flags: str, what: str = "dataset") -> UsageError:
    """The error for a repository that exists, but whose files need permission."""
    return UsageError(
        f"{flags}: the hub refuses access. If the {what} is gated, accept its terms on its "
        "page, and set HF_TOKEN to a token with read access."
    )


def config_refused(
    flags: str, config: str | None, names: list[str], error: Exception
) -> FineshardsError:
    """The error for a config that the library refused.

    names: the configs that exist; empty if the library cannot list them.
    """
    if names and config is not None and config not in names:
        problem = f"there is no config {config!r}"
    elif config is None and len(names) > 1:
        problem = "it has several configs and no default"
    else:
        return InputError(
            f"{flags} cannot be listed ({brief(error)}). Check the configs in its README.md."
        )
    return UsageError(f"{flags}: {problem}. Choose one with --dataset_config: {', '.join(names)}.")


def brief(error: Exception) -> str:
    """The first line of a library's message; some go on with examples or every known format."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0].rstrip("."), 200, placeholder=" ...")
