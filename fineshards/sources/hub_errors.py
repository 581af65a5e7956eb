"""Why a dataset cannot be resolved: one sentence each, from what the hub's libraries raise.

`asked`, everywhere, is what the user asked for, in the words of the command line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from fineshards.errors import FineshardsError, InputError, UsageError


@contextmanager
def hub_failures(asked: str) -> Iterator[None]:
    """Raises UsageError or InputError when the hub does not answer as hoped."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    hub = constants.ENDPOINT
    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"{asked}: this is no name on the hub: {error}") from error
    except errors.GatedRepoError as error:
        raise access_refused(asked) from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"{asked}: {hub} has no such dataset, or it is private; check the name, "
            "and for a private dataset set HF_TOKEN to a token that may read it."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            f"{asked}: there is no such revision; give a branch, a tag or a full commit "
            "hash, or leave --dataset_revision out for the main branch."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(
            f"{asked}: HF_HUB_OFFLINE forbids to ask {hub}; unset it, or give a folder."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise access_refused(asked) from error
        raise InputError(f"{asked}: {hub} answered {status}; try later.") from error
    except (ConnectionError, httpx.HTTPError) as error:
        raise InputError(
            f"{asked}: {hub} cannot be reached ({brief(error)}); "
            "check the network and HF_ENDPOINT, or give a folder."
        ) from error


def access_refused(asked: str) -> UsageError:
    """The repository exists, but its files are not for everybody."""
    return UsageError(
        f"{asked}: the hub refuses access; accept the dataset's terms on its page if it "
        "is gated, and set HF_TOKEN to a token that may read it."
    )


def config_refused(
    asked: str, config: str | None, names: list[str], error: Exception
) -> FineshardsError:
    """The library refused a config; `names` are those that exist, empty if it could not tell."""
    if names and config is not None and config not in names:
        problem = f"there is no config {config!r}"
    elif config is None and len(names) > 1:
        problem = "it has several configs and no default"
    else:
        return InputError(
            f"{asked} cannot be listed ({brief(error)}); check the configs in its README.md."
        )
    return UsageError(
        f"{asked}: {problem}; name one with --dataset_config (there is: {', '.join(names)})."
    )


def brief(error: Exception) -> str:
    """The start of a library's message; some go on with examples, or with every known format."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0].rstrip("."), 200, placeholder=" ...")
