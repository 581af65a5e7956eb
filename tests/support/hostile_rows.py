"""Rows whose every value tries to be markup, a script, or a command for a terminal."""

import json
from pathlib import Path

ATTACK = (
    "</script></style><script>window.attacked = 1</script>"
    '<img src="x" onerror="window.attacked = 2">'
)
# In a text beside line feeds; JSON escapes them.
CONTROLS = "\x00\x1b[2J\x07\u202e\u2028 & &lt; <!-- ]]> \ufffd"
RECIPE = '[[steps]]\nuse = "length"\nmin_chars = 20\n[[steps]]\nuse = "exact"\n'


def write_hostile_input(folder: Path, documents: int = 40) -> Path:
    """Two files with hostile names; every third document repeats one, and some are too short."""
    folder.mkdir(parents=True)
    for name in ("a<b>&'\"", "z<script>"):
        rows = [
            {
                "text": f"{ATTACK} {CONTROLS} {number} مرحبا 👩‍👧 " * (1 + number % 5),
                "id": f'{name}-{number}"><script>window.attacked = 3</script>',
                "dump": f'{ATTACK}" onfocus="window.attacked = 4',
                "language": "<b>xx</b>" if number % 2 else "</td></table>",
                "url": f"https://<i>{number % 3}</i>.example/{ATTACK}",
            }
            for number in range(documents)
        ]
        rows += [{"text": "<p>", "id": None, "dump": None, "language": None, "url": None}]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "recipe.toml").write_text(RECIPE)
    return folder
