"""Gathers the pages of the documentation site in one folder: `python docs/gather_pages.py FOLDER`.

These are `docs/`, and the files of the repository that its pages link to, such as
`../examples/train_ddp.py`: Markdown as it is, code as a listing. Their links are those of the
folder. Run by `make site`, which then adds the pages that are made from the code.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Pages outside of docs/ that the navigation names, and their names there.
NAMED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=(?:#[^)\s]*)?\))")
_LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yml": "yaml"}


def gather(folder: Path) -> None:
    """Writes the pages into a new folder; an old one is deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "*.txt", "__*", "templates")
    )
    waiting = [*NAMED, *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
    done = set()
    while waiting:
        path = waiting.pop()
        if path in done or (path.startswith("docs/") and not path.endswith(".md")):
            continue
        done.add(path)
        page = folder / place(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / path).read_text()
        if path.endswith(".md"):
            waiting += _links(path, text).values()
            text = with_links_of_the_site(path, text)
            if path == "README.md":  # one page, so without a column for its neighbours
                text = f"---\nhide: [navigation]\n---\n{text}"
        elif page.suffix == ".md":
            text = f"# {path}\n\n~~~~~~ {_LANGUAGES[Path(path).suffix]}\n{text}~~~~~~\n"
        page.write_text(text)


def place(path: str) -> str:
    """Where a file of the repository is in the folder of pages."""
    if path in NAMED:
        return NAMED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{path}.md" if Path(path).suffix in _LANGUAGES else path


def with_links_of_the_site(path: str, markdown: str) -> str:
    """A page of the repository with its links changed to those of the folder."""
    folder = posixpath.dirname(place(path))
    links = {
        link: posixpath.relpath(place(file), folder)
        for link, file in _links(path, markdown).items()
    }
    return _LINK.sub(lambda found: links.get(found[0], found[0]), markdown)


def _links(path: str, markdown: str) -> dict[str, str]:
    """The links of a page to files of the repository; a folder means its README.md."""
    found = {}
    for link in _LINK.findall(markdown):
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        if (ROOT / file).is_dir():
            file = posixpath.join(file, "README.md")
        if (ROOT / file).is_file():
            found[link] = file
    return found


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
