"""The file of a report: where it goes, and what it never replaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faulty_proxy import Proxy
from support.reported import written

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.storage.open import open_storage


def test_a_link_stays_and_what_is_not_a_file_is_not_replaced(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = built("no test")
    (tmp_path / "link.html").symlink_to("real.html")
    page = written(dataset, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_bytes() == page
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is not a regular file"):
        fineshards.report(dataset, output=tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link.html", "pipe", "real.html"]


UNFINISHED = """
import os, sys
import fineshards
def stop(*_):
    print("stopped", flush=True)
    sys.stdin.read()
os.replace = stop
fineshards.report(sys.argv[1], output=sys.argv[2])
"""


def test_a_report_removes_what_a_killed_one_left(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset, output = built("no test"), tmp_path / "page.html"
    killed, running = (
        subprocess.Popen(
            [sys.executable, "-c", UNFINISHED, dataset, output],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    )
    for process in (killed, running):
        assert process.stdout is not None
        assert process.stdout.readline() == b"stopped\n"
    there = set(tmp_path.rglob("*"))
    killed.kill()
    killed.communicate()
    written(dataset, output)
    left = set(tmp_path.rglob("*")) - {output}
    assert left < there
    assert 2 * len(left) == len(there)
    running.kill()
    running.communicate()
    written(dataset, output)
    assert [*tmp_path.iterdir()] == [output]


def test_in_the_folder_of_a_dataset_the_report_goes_beside_it(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = shutil.copytree(built("no test"), tmp_path / "mine")
    for folder, name in ((dataset, "."), (dataset / "train", "..")):
        monkeypatch.chdir(folder)
        assert main(["report", name]) == 0
        (tmp_path / "mine-report.html").unlink()
    with pytest.raises(UsageError, match=r"Give gs://bucket/name\.html"):
        fineshards.report(dataset, output="gs://mybucket")


def test_places_that_a_report_cannot_be_in_are_refused(
    built: Callable[[str], Path], tmp_path: Path, capsys
) -> None:
    dataset = built("no test")
    for place in (dataset / "report.html", dataset / "train/report.html"):
        with pytest.raises(UsageError, match="is in the dataset's folder, where verify allows no"):
            fineshards.report(dataset, output=place)
    with pytest.raises(UsageError, match="is a folder"):
        fineshards.report(dataset, output=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/x\.html cannot be written: "):
        fineshards.report(dataset, output=tmp_path / "file/x.html")
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no finished dataset" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file"]
    assert main(["verify", str(dataset)]) == 0


@pytest.mark.cloud
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_report_from_and_on_object_storage_has_the_bytes_of_a_local_one(
    built: Callable[[str], Path], scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Proxy = request.getfixturevalue({"gs": "cloud", "s3": "s3"}[scheme])
    dataset, place = built("by document"), f"{scheme}://data/deep/out"
    storage = open_storage(place)
    for path in dataset.rglob("*"):
        if path.is_file():
            storage.write(path.relative_to(dataset).as_posix(), path.read_bytes())
    page = written(dataset, tmp_path / "local.html")
    assert written(place, tmp_path / "far.html") == page
    for title in ("other", None):  # the second replaces the first
        fineshards.report(place, output=f"{scheme}://data/reports/x.html", title=title)
        assert (server.content("data", "reports/x.html") == page) is (title is None)
    with pytest.raises(UsageError, match="is in the dataset's folder"):
        fineshards.report(place, output=f"{place}/x.html")
    with pytest.raises(UsageError, match="is in the dataset's folder"):
        fineshards.report(place, output=place)
