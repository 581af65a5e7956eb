"""The steps of the graph: discover, judge, tokenize, plan, write, commit.

This folder is installed as `fineshards.transforms`. Under a second name its classes would exist
twice.
"""

if __name__ != "fineshards.transforms":
    raise ImportError(f"this package is fineshards.transforms; it cannot be imported as {__name__}")
