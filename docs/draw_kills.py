"""Trains a small model twice and draws both losses, images/kills.svg. Run by `make pictures`.

The first run is left alone. The second is killed five times, and each launch continues after the
last checkpoint on another number of ranks. Both are `examples/train_ddp.py`, on the processor.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import fineshards

ROOT = Path(__file__).parent.parent
PATH = ROOT / "docs/images/kills.svg"
SAMPLE = ROOT / "samples/debian_text.parquet"
STEPS, SAVE_STEPS = 600, 20
# Ranks of each launch, and the step at which it is killed.
LAUNCHES = [(4, 90), (2, 175), (1, 250), (4, 365), (2, 480), (1, None)]
_LINE = re.compile(r"step (\d+) rank \d+ loss (\S+)\n")
_WIDTH, _HEIGHT = 560, 400
# The plot: its edges, in pixels.
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 536, 92, 320

_STYLE = """\
text { font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.caption { fill: #59636e }
.small { font-size: 13px; text-anchor: middle; fill: #59636e }
.end { font-size: 13px; text-anchor: end; fill: #59636e }
.page { fill: #ffffff }
.axis { stroke: #d1d9e0 }
.kill { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
.whole, .killed { fill: none; stroke-linejoin: round }
.whole { stroke: #b6e3ff; stroke-width: 7 }
.killed { stroke: #0969da; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .caption, .small, .end { fill: #9198a1 }
  .page { fill: #0d1117 }
  .axis { stroke: #3d444d }
  .kill { stroke: #f85149 }
  .whole { stroke: #0d4f94 }
  .killed { stroke: #f0f6fc }
}
"""


def make_dataset(folder: Path) -> Path:
    """The sample, in tokens of a small vocabulary that is trained on it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pq.read_table(SAMPLE)["text"].to_pylist(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    output = folder / "dataset"
    fineshards.build(input=SAMPLE, output=output, tokenizer=folder / "tokenizer.json")
    return output


def train(dataset: Path, checkpoint: Path, ranks: int, killed_at: int | None) -> dict[int, float]:
    """One launch: the loss of each step, over all ranks."""
    command = [sys.executable, str(ROOT / "examples/train_ddp.py"), str(dataset)]
    command += [f"--checkpoint={checkpoint}", f"--steps={STEPS}", f"--save_steps={SAVE_STEPS}"]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    printed = [checkpoint.with_name(f"{checkpoint.stem}-{rank}.txt") for rank in range(ranks)]
    processes = []
    for rank, path in enumerate(printed):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with path.open("w") as output:
            processes.append(subprocess.Popen(command, env=environment | own, stdout=output))
    while processes[0].poll() is None:
        time.sleep(0.02)
        if killed_at is not None and f"step {killed_at} " in printed[0].read_text():
            for process in processes:
                process.kill()
    codes = {process.wait() for process in processes}
    if codes != {0 if killed_at is None else -signal.SIGKILL}:
        raise SystemExit(f"{command} ended with {codes}")
    losses: dict[int, list[float]] = {}
    for path in printed:
        for step, loss in _LINE.findall(path.read_text()):
            losses.setdefault(int(step), []).append(float(loss))
    return {step: sum(each) / ranks for step, each in losses.items() if len(each) == ranks}


def draw(whole: dict[int, float], killed: list[dict[int, float]]) -> str:
    """The picture. killed: the losses of each launch."""
    most, least = max(whole.values()), min(whole.values())
    low, high = int(least), int(most) + 1

    def x(step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / STEPS

    def y(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (loss - low) / (high - low)

    def path(kind: str, losses: dict[int, float]) -> str:
        points = "L".join(f"{x(step):.1f} {y(loss):.1f}" for step, loss in sorted(losses.items()))
        return f'<path class="{kind}" d="M{points}"/>'

    difference = max(abs(loss - whole[step]) for each in killed for step, loss in each.items())
    ranks = ", ".join(str(ranks) for ranks, _ in LAUNCHES)
    title = "Killed five times, moved over 4, 2 and 1 ranks"
    lines = [f'<text class="title" x="24" y="38">{title}</text>']
    for loss in range(low, high + 1):
        lines.append(f'<path class="axis" d="M{_LEFT} {y(loss):.1f}H{_RIGHT}"/>')
        lines.append(f'<text class="end" x="{_LEFT - 8}" y="{y(loss) + 5:.1f}">{loss}</text>')
    begin = 0
    for count, at in LAUNCHES:
        end = at or STEPS
        name = "rank" if count == 1 else "ranks"
        middle = (x(begin) + x(end)) / 2
        lines.append(f'<text class="small" x="{middle:.1f}" y="{_TOP - 16}">{count} {name}</text>')
        if at:
            lines.append(f'<path class="kill" d="M{x(at):.1f} {_TOP - 30}V{_BOTTOM}"/>')
        begin = end
    lines.append(path("whole", whole))
    lines += [path("killed", each) for each in killed]
    for step in range(0, STEPS + 1, 100):
        lines.append(f'<text class="small" x="{x(step):.1f}" y="{_BOTTOM + 20}">{step}</text>')
    for number, caption in enumerate(
        [
            "Loss by step. Wide: one rank, left alone. Thin: killed at each dashed",
            f"line, and moved. They differ by {difference:.6f} at most.",
        ]
    ):
        y_ = _BOTTOM + 48 + 20 * number
        lines.append(f'<text class="caption" x="24" y="{y_}">{caption}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{title}</title>',
            f'<desc id="desc">The loss of a small model over {STEPS} steps, twice. One run was '
            f"left alone. The other was killed five times, and continued on {ranks} ranks. The two "
            f"lines lie on each other: they differ by {difference:.6f} at most.</desc>",
            f"<style>\n{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder))
        whole = train(dataset, Path(folder, "whole.pt"), 1, None)
        killed = [train(dataset, Path(folder, "killed.pt"), *launch) for launch in LAUNCHES]
        PATH.write_text(draw(whole, killed))
