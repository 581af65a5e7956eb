"""Names of local folders: which files of a dataset have them, and what is published instead."""

from __future__ import annotations

from typing import Any

from fineshards.shards.job.job import JOB_NAME
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME

# Steps whose parameters may have slashes, and name no file.
_NO_FILES = ("where", "pattern")


def is_local(path: str) -> bool:
    """Whether a path, or a URL of fsspec's, is on a disk."""
    return "://" not in path or path.startswith("local://")


class Folders:
    """Numbers in place of the names of local folders, in the order in which they are first seen.

    Example:
        >>> folders = Folders()
        >>> [folders.in_text(text) for text in ("/a/x.txt", "/b/x.txt", "gs://a/x", "/a/y", "z")]
        ['folder-1/x.txt', 'folder-2/x.txt', 'gs://a/x', 'folder-1/y', 'z']
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def in_text(self, text: str) -> str:
        """A path, with a number for its folder; a URL or a name as it is."""
        folder, slash, name = text.rpartition("/")
        if not slash or not is_local(text):
            return text
        return f"folder-{self._numbers.setdefault(folder, len(self._numbers) + 1)}/{name}"

    def in_recipe(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings as JSON, with numbers for the folders of the files that a recipe reads."""
        if "recipe" not in settings:
            return settings
        recipe = settings["recipe"]
        steps = [
            step if step["use"] in _NO_FILES else self._in_values(step) for step in recipe["steps"]
        ]
        indexes = self._in_values(recipe["indexes"])
        return settings | {"recipe": recipe | {"steps": steps, "indexes": indexes}}

    def _in_values(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.in_text(name): self._in_values(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._in_values(each) for each in value]
        return self.in_text(value) if isinstance(value, str) else value


def files_with_folders(manifest: Manifest) -> list[str]:
    """The files of a dataset that have names of local folders, as patterns, but the provenance.

    They cannot be left out: the fingerprint is made of them, and verify compares them.
    """
    recipe = manifest.settings.recipe
    sources = any(is_local(file.path) for file in manifest.files)
    folders = Folders()
    settings = {"recipe": recipe.to_json()} if recipe else {}
    if not sources and folders.in_recipe(settings) == settings:
        return []
    found = [MANIFEST_NAME, JOB_NAME]
    found += ["metadata/generations/*.json"] * (manifest.generation > 1)
    if sources:
        found.append("metadata/documents/*.parquet")
        found += ["metadata/rejected/*.jsonl"] * bool(manifest.totals()["rejected"])
    return found
