"""The job: options, launch, the Beam graph, the command line, progress.

This folder is installed as `fineshards.pipeline`. Under a second name its classes would exist
twice.
"""

if __name__ != "fineshards.pipeline":
    raise ImportError(f"this package is fineshards.pipeline; it cannot be imported as {__name__}")
