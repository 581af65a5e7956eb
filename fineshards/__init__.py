"""Builds exact token shards from raw text, and loads them as training batches.

    import fineshards

    manifest = fineshards.build(input="data/*.parquet", output="out")
    dataset = fineshards.TokenDataset("out", sequence_length=2048)

Names are imported when they are first used. So `import fineshards` loads no other library, and a
training machine needs numpy and msgspec alone.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fineshards.curation.recipe import Recipe as Recipe
    from fineshards.errors import FineshardsError as FineshardsError
    from fineshards.inspection.explain import explain as explain
    from fineshards.inspection.inspect import find as find
    from fineshards.inspection.stats import stats as stats
    from fineshards.job_status.status import status as status
    from fineshards.loader.batch_loader import BatchLoader as BatchLoader
    from fineshards.loader.context_parallel import ContextParallel as ContextParallel
    from fineshards.loader.mixing.mixture import Mixture as Mixture
    from fineshards.loader.mixing.mixture_weights import linear_schedule as linear_schedule
    from fineshards.loader.packing import Packing as Packing
    from fineshards.loader.token_dataset import TokenDataset as TokenDataset
    from fineshards.loader.torch_batches import TorchBatches as TorchBatches
    from fineshards.loader.whole_documents import WholeDocuments as WholeDocuments
    from fineshards.maintenance.redact import redact as redact
    from fineshards.maintenance.repair import repair as repair
    from fineshards.pipeline.export_run import export as export
    from fineshards.pipeline.functions import append as append
    from fineshards.pipeline.functions import build as build
    from fineshards.pipeline.functions import estimate as estimate
    from fineshards.pipeline.functions import recipe_check as recipe_check
    from fineshards.publishing.publish import publish as publish
    from fineshards.reports.report import report as report
    from fineshards.verification.verify import verify as verify

    __version__: str

# In a checkout, pipeline/ and transforms/ lie beside this folder; installed, they lie in it. So the
# package is whole also where Python finds the checkout first, as the current folder.
_FOLDER = Path(__file__).parent
if not (_FOLDER / "pipeline").is_dir() and (_FOLDER.parent / "pipeline/__init__.py").is_file():
    __path__.append(str(_FOLDER.parent))

_HOME = {
    "BatchLoader": "fineshards.loader.batch_loader",
    "ContextParallel": "fineshards.loader.context_parallel",
    "FineshardsError": "fineshards.errors",
    "Mixture": "fineshards.loader.mixing.mixture",
    "Packing": "fineshards.loader.packing",
    "Recipe": "fineshards.curation.recipe",
    "TokenDataset": "fineshards.loader.token_dataset",
    "TorchBatches": "fineshards.loader.torch_batches",
    "WholeDocuments": "fineshards.loader.whole_documents",
    "append": "fineshards.pipeline.functions",
    "build": "fineshards.pipeline.functions",
    "estimate": "fineshards.pipeline.functions",
    "explain": "fineshards.inspection.explain",
    "export": "fineshards.pipeline.export_run",
    "find": "fineshards.inspection.inspect",
    "linear_schedule": "fineshards.loader.mixing.mixture_weights",
    "publish": "fineshards.publishing.publish",
    "recipe_check": "fineshards.pipeline.functions",
    "redact": "fineshards.maintenance.redact",
    "repair": "fineshards.maintenance.repair",
    "report": "fineshards.reports.report",
    "stats": "fineshards.inspection.stats",
    "status": "fineshards.job_status.status",
    "verify": "fineshards.verification.verify",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("fineshards")
    if name == "__all__":
        # What can be imported here: `import *` of a machine that only trains brings the loader.
        return [name for name in __dir__() if _is_there(name)]
    if name not in _HOME:
        raise AttributeError(f"module 'fineshards' has no attribute {name!r}")
    from fineshards.extras import naming_the_extra

    with naming_the_extra():
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*_HOME, "__version__"} - {"TorchBatches"})


def _is_there(name: str) -> bool:
    try:
        __getattr__(name)
    except ImportError:
        return False
    return True
