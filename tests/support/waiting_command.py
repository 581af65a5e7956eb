"""A command of fineshards that waits at one file operation, so that tests can order two processes.

Usage: python -m support.waiting_command WHERE NAME FOLDER COMMAND…. WHERE is `replace` or `rmtree`,
and NAME the end of the path. Its processes touch FOLDER/NAME.reached before that operation and wait
for FOLDER/NAME.go, then touch FOLDER/NAME.done and wait for FOLDER/NAME.over.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from fineshards.cli.cli import main
from fineshards.worker import own_process


def wait_for(path: Path) -> None:
    """Waits until a file is there."""
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(path)


def wait_at(where: str, name: str, folder: Path) -> None:
    """Makes the first such operation wait before and after."""
    module: Any = os if where == "replace" else shutil
    original, flag = getattr(module, where), folder / os.path.basename(name)

    def waiting(*paths: Any, **options: Any) -> None:
        waits = str(paths[-1]).endswith(name) and not Path(f"{flag}.reached").exists()
        if waits:
            Path(f"{flag}.reached").touch()
            wait_for(Path(f"{flag}.go"))
        original(*paths, **options)
        if waits:
            Path(f"{flag}.done").touch()
            wait_for(Path(f"{flag}.over"))

    setattr(module, where, waiting)


if __name__ == "__main__":
    own_process.alone = True
    wait_at(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
