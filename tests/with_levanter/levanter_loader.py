"""Levanter's DataLoader over what the page makes: `levanter_loader.py DEVICES BEGIN KILLED_AT`.

Runs in the folder with the dataset `out`. Prints a line of JSON per step, the rows of all devices,
from step BEGIN on, which is all that Levanter's checkpoint says about data. It kills itself before
step KILLED_AT.
"""

import json
import os
import signal
import sys
from pathlib import Path

BATCH, STEPS = 8, 8

if __name__ == "__main__":
    devices, begin, killed_at = map(int, sys.argv[1:])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

    import jax
    import numpy as np
    from haliax import Axis
    from jax.sharding import Mesh
    from levanter.data.loader import DataLoader
    from levanter.schedule import BatchSchedule

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from support.page_examples import run_examples

    page = run_examples(Path(__file__).parents[2] / "docs/trainers.md")["Levanter"]
    rows = page["config"].train_set(
        Axis("position", 1024), BatchSchedule(BATCH), key=jax.random.PRNGKey(1)
    )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    loader = DataLoader(rows, BATCH, mesh=mesh, axis_resources={"batch": "data"})
    assert len(jax.devices()) == devices
    for step, batch in enumerate(loader.iter_from_step(begin), begin):
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        assert len(batch.tokens.array.sharding.device_set) == devices
        print(json.dumps(np.asarray(batch.tokens.array).tolist()), flush=True)
        if step == STEPS - 1:
            os._exit(0)  # or its threads go on
