"""The token for the hub from Secret Manager: fetched once, and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.secret_server import SecretServer

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.sources.places import hub_token
from fineshards.sources.places.hub_token import provide_token

NAME = "projects/p/secrets/hf-token/versions/latest"
TOKEN = "hf_very_secret"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretServer]:
    monkeypatch.setattr(hub_token, "_fetched", set())
    monkeypatch.setenv("HF_TOKEN", "hf_before")
    with SecretServer({NAME: f"{TOKEN}\n", "projects/p/secrets/x/versions/1": "two words"}) as one:
        for name, value in one.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield one


def test_the_token_is_fetched_once_also_after_a_failure_that_passes(server: SecretServer) -> None:
    server.failures = 1
    provide_token(NAME)
    assert os.environ["HF_TOKEN"] == TOKEN
    provide_token(NAME)
    assert server.read == [NAME, NAME]


def test_without_a_secret_the_environment_decides(server: SecretServer) -> None:
    provide_token(None)
    assert os.environ["HF_TOKEN"] == "hf_before"
    assert server.read == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("projects/p/secrets/other/versions/1", "answers 403. Check the name"),
        ("projects/p/secrets/x/versions/1", "the secret is not a token"),
    ],
)
def test_a_secret_that_cannot_be_read(server: SecretServer, name: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        provide_token(name)
    assert sentence in str(caught.value)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("given", [TOKEN, "projects/p/secrets/s", f"{NAME}/x", "a/b\n"])
def test_a_token_in_place_of_the_name_is_refused_without_showing_it(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        BuildConfig(dataset="a/b", output="out", hf_token_secret=given)
    assert given not in str(caught.value)
