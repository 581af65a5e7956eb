"""What an earlier `estimate` said, kept in the user's cache folder for the summary of a build."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from fineshards.inspection.estimate import Estimate
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.wording import approximately, duration


def remember(estimate: Estimate, files: Sequence[SourceFile], settings: Settings) -> None:
    """Keeps an estimate for the summary of a build; does nothing where that is impossible."""
    with suppress(OSError, RuntimeError):
        path = _path(files, settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{approximately(estimate.tokens)} tokens, {duration(estimate.seconds)}")


def recall(files: Sequence[SourceFile], settings: Settings) -> str | None:
    """What an earlier `estimate` said of these files with this tokenizer, as a phrase."""
    with suppress(OSError, RuntimeError, ValueError):
        path = _path(files, settings)
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        return f"{path.read_text()} (by fineshards estimate at {made})"
    return None


def _path(files: Sequence[SourceFile], settings: Settings) -> Path:
    what = [[asdict(file) for file in files], asdict(settings.columns), asdict(settings.tokenizer)]
    what += [] if settings.recipe is None else [settings.recipe.to_json()]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fineshards" / "estimates" / f"{name}.json"
