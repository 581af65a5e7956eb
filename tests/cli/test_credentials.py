"""Passwords and tokens in URLs: refused wherever a URL is given, and shown and stored nowhere."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.growing import build, made_up_rows, write_rows

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.cli.terminal import report_errors
from fineshards.credentials import masked, refuse_secrets
from fineshards.errors import InputError, UsageError
from fineshards.sources.files import find_files
from fineshards.sources.places.hub import DatasetRequest, fetch_tokenizer, resolve_dataset
from fineshards.storage.open import open_storage

SECRET = "hunter2"
URLS = [
    f"https://me:{SECRET}@store.example:9000/x",
    f"https://{SECRET}@store.example/x",
    f"s3://KEY:{SECRET}@bucket/x",
    f"gs://{SECRET}@bucket/x",
    f"sftp://me:{SECRET}@store.example/x",
    f"https://me:a/{SECRET}@store.example/x",
    f"https://store.example/x?a=b&access_token={SECRET}",
    *(
        f"https://store.example/x?a=b&{name}={SECRET}"
        for name in ("token", "refresh_token", "private-token", "hf_token", "idtoken")
    ),
    *(
        f"https://store.example/x?{name}={SECRET}"
        for name in ("client_secret", "my_access_token", "apikey", "api-key", "pwd")
    ),
    f"https://store.example/x?tokenizer=a&X-Amz-Signature={SECRET}",
    f"HTTPS://me:{SECRET}@store.example/x",
]
RIGHT = [
    "https://store.example:9000/a@b/x?a=b",
    "https://[::1]:9000/a@b",
    "s3://bucket/a:b@c",
    "sftp://me@store.example:22/x",
    "abfs://container@account.dfs.core.windows.net/x",
    "hf://datasets/OWNER/NAME@main/x",
    "github://OWNER:NAME@main/x.jsonl",
    "https://store.example/x?tokenizer=a&signatures=b",
    "https://store.example/x?page_token=a&next-token=b&continuation_token=c&eot_token=d",
    "a:b@c/d",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 20))
    build(folder / "out", source, "--shard_tokens=300")
    return folder / "out"


@pytest.mark.parametrize("url", URLS)
def test_a_secret_in_a_url_is_refused_and_masked(url: str) -> None:
    with pytest.raises(
        UsageError, match="a user or password in a URL, a token or a signature"
    ) as error:
        refuse_secrets(url, "--x")
    assert SECRET not in str(error.value)
    assert SECRET not in masked(f"'{url}/x' failed: see {url}.")


@pytest.mark.parametrize("url", RIGHT)
def test_other_urls_are_as_they_are(url: str) -> None:
    assert refuse_secrets(url) == url
    assert masked(f"{url} failed, or {url}") == f"{url} failed, or {url}"


@pytest.mark.parametrize(
    "command",
    [
        "build --input {url} --output {out}",
        "build --input {rows} --output {url}",
        "build --input {rows} --output {out} --s3_endpoint {url}",
        "build --input {rows} --output {out} --tokenizer {url}",
        "build --input {rows} --output {out} --recipe {url}",
        "build --input {rows} --output {out} --decontaminate {url}",
        "build --dataset {url} --output {out}",
        "append {data} --input {url}",
        "append {data} --input {rows} --s3_endpoint {url}",
        "export {url} --to raw --output {out}",
        "export {data} --to raw --output {url}",
        "export {data} --to raw --output {out} --s3_endpoint {url}",
        "estimate --input {url}",
        "verify {url}",
        "status {url}",
        "inspect {url}",
        "stats {url}",
        "inspect {url} --find --id a",
        "repair {url}",
        "redact {url} --documents 1",
        "report {url}",
        "report {data} --output {url}",
        "publish {url}",
        "publish {data} --url {url}",
        "publish {data} --license {url}",
        "verify {data} {url}",
    ],
)
def test_every_command_refuses_it(
    command: str, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(dataset, tmp_path / "data")
    places = {"rows": dataset.parent / "rows.parquet", "out": tmp_path / "out", "data": data}
    assert main([word.format(url=URLS[0], **places) for word in command.split()]) == 2
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert len(shown.err.splitlines()) == 1
    assert "://…@" in shown.err
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


@pytest.mark.long
def test_lists_of_a_recipe_and_paths_of_the_loader(tmp_path: Path, dataset: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    rows, out = dataset.parent / "rows.parquet", tmp_path / "out"
    for step in (
        f'use = "c4_badwords"\nwords = "{URLS[2]}/words.txt"',
        f'use = "decontaminate"\nfiles = ["{URLS[2]}/eval.jsonl"]',
        f'use = "decontaminate"\nfiles = ["{URLS[2]}/*.jsonl"]',
        f'use = "url"\ndomain_files = ["{URLS[2]}/domains.txt"]',
        f'use = "score"\nname = "s"\nby = "fasttext"\nmodel = "{URLS[2]}/model.bin"',
    ):
        recipe.write_text(f"[[steps]]\n{step}\n")
        with pytest.raises((UsageError, InputError)) as error:
            fineshards.build(input=rows, output=out, recipe=recipe)
        assert SECRET not in str(error.value)
        assert not out.exists()
    for url in URLS:
        with pytest.raises(UsageError) as error:
            TokenDataset(url, sequence_length=4)
        assert SECRET not in str(error.value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "HF_ENDPOINT"])
@pytest.mark.parametrize("scheme", ["https://", "http://", ""])
def test_an_endpoint_of_the_environment(
    variable: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"{scheme}me:{SECRET}@store.example:9000"
    monkeypatch.setenv(variable, endpoint)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    uses: dict[str, list[Callable[[], object]]] = {
        "AWS_ENDPOINT_URL": [lambda: fineshards.verify("s3://bucket/x")],
        "STORAGE_EMULATOR_HOST": [
            lambda: fineshards.verify("gs://bucket/x"),
            lambda: find_files(["gs://bucket/*.jsonl"]),
        ],
        "HF_ENDPOINT": [
            lambda: fetch_tokenizer("some/one"),
            lambda: resolve_dataset(DatasetRequest("some/one", None, "train", None)),
            lambda: find_files(["hf://datasets/some/one/*.jsonl"]),
        ],
    }
    for use in uses[variable]:
        with pytest.raises(UsageError, match=rf"^{variable} https?://…@store") as error:
            use()
        assert SECRET not in str(error.value)


def test_an_endpoint_that_is_no_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        open_storage(str(tmp_path), f"me:{SECRET}@store.example:9000")
    assert SECRET not in str(error.value)


def test_errors_and_log_lines_of_libraries_are_masked(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in (InputError, ValueError):

        def fail(kind: type[Exception] = kind) -> int:
            raise kind(f"GET {URLS[0]} failed")

        assert report_errors(fail) == 1
    shown = capfd.readouterr().err
    assert SECRET not in shown
    assert "GET https://…@store.example:9000/x failed" in shown
