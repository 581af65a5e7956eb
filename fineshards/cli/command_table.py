"""The commands, in the order of the help page.

Each is a `Command` of a module of its own. Libraries are imported by the command that runs, so that
help pages and mistakes are quick.
"""

from __future__ import annotations

from fineshards.cli.dataset_commands import APPEND, BUILD, ESTIMATE
from fineshards.cli.explain_command import EXPLAIN
from fineshards.cli.export_command import EXPORT
from fineshards.cli.find_command import FIND
from fineshards.cli.inspect_command import INSPECT
from fineshards.cli.publish_command import PUBLISH
from fineshards.cli.recipe_command import RECIPE
from fineshards.cli.redact_command import REDACT
from fineshards.cli.repair_command import REPAIR
from fineshards.cli.report_command import REPORT
from fineshards.cli.stats_command import STATS
from fineshards.cli.status_command import STATUS
from fineshards.cli.verify_command import VERIFY

COMMANDS = (
    BUILD,
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
