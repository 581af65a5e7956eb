"""The commands, in the order of the help page.

Each is a `Command` of a module of its own. Libraries are imported by the command that runs, so that
help pages and mistakes are quick.
"""

from __future__ import annotations

from fineshards.pipeline.build_commands import APPEND, BUILD, ESTIMATE, IMPORT
from fineshards.pipeline.explain_command import EXPLAIN
from fineshards.pipeline.export_command import EXPORT
from fineshards.pipeline.find_command import FIND
from fineshards.pipeline.inspect_command import INSPECT
from fineshards.pipeline.publish_command import PUBLISH
from fineshards.pipeline.recipe_command import RECIPE
from fineshards.pipeline.redact_command import REDACT
from fineshards.pipeline.repair_command import REPAIR
from fineshards.pipeline.report_command import REPORT
from fineshards.pipeline.stats_command import STATS
from fineshards.pipeline.status_command import STATUS
from fineshards.pipeline.verify_command import VERIFY

COMMANDS = (
    BUILD,
    IMPORT,
    APPEND,
    STATUS,
    VERIFY,
    INSPECT,
    STATS,
    REPORT,
    FIND,
    EXPORT,
    PUBLISH,
    REPAIR,
    REDACT,
    EXPLAIN,
    ESTIMATE,
    RECIPE,
)
