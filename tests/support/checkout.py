"""Where the files of this checkout are."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
SAMPLE = ROOT / "samples/debian_text.parquet"


def docs_program(name: str) -> ModuleType:
    """A program of docs/, such as one that writes a page."""
    spec = spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
