"""The storage of an output folder, by its path or URL."""

import os

from fineshards.credentials import refuse_secrets, refuse_secrets_in_endpoint
from fineshards.errors import FineshardsError, OutputError, UsageError, quoted, with_escaped_bytes
from fineshards.extras import require
from fineshards.storage.base import Storage


def open_storage(
    root: str | os.PathLike[str],
    s3_endpoint: str | None = None,
    error: type[FineshardsError] = OutputError,
) -> Storage:
    """The storage of an output folder: a local path, or a URL of gs:// or s3://.

    `~` is the home folder. s3_endpoint: the URL of the store that s3:// means; by default that of
    the environment. error: what is raised where a request fails. Raises UsageError for other
    schemes, and for a scheme without the libraries that it needs.
    """
    if not isinstance(root, str | os.PathLike):
        raise UsageError(f"the folder is {quoted(root)}; give a path.")
    root = os.fspath(root)
    if (shown := with_escaped_bytes(root)) != root:
        raise UsageError(f"{shown}: the name of the folder is not valid UTF-8. Rename it.")
    refuse_secrets(root)
    refuse_secrets_in_endpoint(s3_endpoint, "--s3_endpoint")
    scheme, separator, _ = root.partition("://")
    if root.startswith(("gs:", "s3:")) and not separator:
        raise UsageError(
            f"{root}: give {root[:2]}://bucket/folder as text. A Path drops one slash."
        )
    if not separator:
        from fineshards.storage.local import LocalStorage

        return LocalStorage(os.path.expanduser(root))
    if scheme == "gs":
        require("google.cloud.storage", "google-cloud-storage", "gcs")
        from fineshards.storage.gcs import GcsStorage

        return GcsStorage(root, error)
    if scheme == "s3":
        require("boto3", "boto3", "s3")
        from fineshards.storage.s3 import S3Storage

        return S3Storage(root, s3_endpoint, error)
    raise UsageError(
        f"{root}: {scheme}:// is not supported. Give a local folder, gs://bucket/folder or "
        "s3://bucket/folder."
    )
