"""The errors a person sees: one sentence that says what happened, where, and what to do."""


class FineshardsError(Exception):
    """A failure that is explained by its message alone; the command line prints no traceback.

    `exit_code` is the exit status of the process: 1 for what went wrong with the data.
    """

    exit_code = 1


class UsageError(FineshardsError):
    """The command cannot be carried out as given: flags, patterns, an occupied output."""

    exit_code = 2


class InputError(FineshardsError):
    """A source file, row group or row is not what it should be."""


class OutputError(FineshardsError):
    """The output folder cannot be written, or does not hold what it should."""
