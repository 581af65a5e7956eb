"""A storm of faults: builds into a store whose network fails, with all that requests can suffer.

Usage: python -m storms.faults SEED FAULTS [PLACE ...], where a place is gs or s3. Requests are
refused, cut on their way or lose their answers, at random. Each build must end with the files of a
build on a disk, byte for byte, and leave nothing else. Prints the faults as JSON, by kind of
request; ends with 1 if there was a difference.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from support.faulty_proxy import Proxy, faulty_server
from support.growing import made_up_rows, write_rows
from support.oracle import files_in
from support.s3_proxy import faulty_s3
from support.s3_server import client_variables, seaweed_server

from fineshards.cli.cli import main
from fineshards.storage import retries

_BUCKET, _PLACES = "storms", ("gs", "s3")
_FLAGS = ("--shard_tokens=500", "--block_bytes=1", "--workers=3", "--test_fraction=0.3")
# Of a build's requests of one kind, so many of the first fail, one after the other or not.
_AMONG, _FAIL = 400, 24


@contextmanager
def proxied(place: str) -> Iterator[Proxy]:
    """A proxy in front of a store, which commands of this process use."""
    if place == "gs":
        with (
            faulty_server(_BUCKET) as proxy,
            patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": proxy.address}),
        ):
            yield proxy
        return
    with (
        seaweed_server() as server,
        faulty_s3(server, _BUCKET) as proxy,
        patch.dict(os.environ, client_variables(proxy.address)),
    ):
        yield proxy


def build(source: Path, output: str) -> int:
    """Builds a dataset; what it prints goes to where errors go."""
    with redirect_stdout(sys.stderr):
        return main(["build", f"--input={source}", f"--output={output}", *_FLAGS])


def storm(seed: int, wanted: int, place: str, counts: Counter[str]) -> Iterator[str]:
    """Builds until there were so many faults; yields what is wrong."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as root, proxied(place) as proxy:
        source = write_rows(Path(root, "0.parquet"), made_up_rows(seed, 40))
        assert build(source, f"{root}/out") == 0
        expected = files_in(Path(root, "out"))
        # Some readers drop the first object that they list.
        expected |= dict.fromkeys(("test/", "train/"), b"") if place == "gs" else {}
        while counts.total() < wanted:
            proxy.rules.clear()
            for pattern, fault in proxy.faults:
                proxy.fail(pattern, fault, set(draw.sample(range(1, _AMONG), _FAIL)))
            prefix = f"{counts.total()}/"
            code = build(source, f"{place}://{_BUCKET}/{prefix}")
            for rule in proxy.rules:
                counts[f"{rule.pattern.pattern}: {rule.fault}"] += rule.hits
            proxy.rules.clear()
            names = [name for name in proxy.names(_BUCKET) if name.startswith(prefix)]
            found = {name.removeprefix(prefix): proxy.content(_BUCKET, name) for name in names}
            different = {n for n in {*found, *expected} if found.get(n) != expected.get(n)}
            if code or different:
                yield f"{place}, {prefix}: it ended with {code}; differ: {sorted(different)}"


if __name__ == "__main__":
    began, told, wrong = time.monotonic(), dict[str, Counter[str]](), False
    retries.FIRST_WAIT = 0.05
    with suppress(KeyboardInterrupt):  # Ctrl-C ends a storm with what there is
        for name in sys.argv[3:] or _PLACES:
            told[name] = Counter()
            for problem in storm(int(sys.argv[1]), int(sys.argv[2]), name, told[name]):
                wrong = True
                print(problem, file=sys.stderr, flush=True)
    totals = {f"{name}, all": counts.total() for name, counts in told.items()}
    minutes = round((time.monotonic() - began) / 60, 1)
    print(json.dumps({"minutes": minutes, **totals, **told}, indent=1))
    sys.exit(wrong)
