"""Rows of a source file that was copied or touched, compared with those that an earlier run read.

No Beam. A finished block of such a file is read again before anything is built on it.
"""

from dataclasses import replace

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, ReadRows, SourceFile, describe_state
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.row_hash import RowHash
from fineshards.worker.work import Work

_ADVICE = (
    "Put the old file back, with its time if you can, and run again; or choose another --output; "
    "or start over with --overwrite."
)


def check_rows(file: SourceFile, block: Block, read: ReadRows | None, work: Work) -> None:
    """Raises InputError unless a block still has the rows that an earlier run read.

    read: what that run recorded. Costs nothing where the file has the same identity as then.
    """
    checkpoints = work.checkpoints
    place = f"{file.path}, block {block.index + 1} of {block.blocks}"
    if read is None:
        _check_known(file, place, work)
        return
    if read.version == file.version:
        return
    now = replace(read, version=file.version)
    if checkpoints.discovered.read_same(block) == now:
        return
    found = RowHash()
    for _ in found.through(read_block(file, work.settings.columns, block)):
        pass
    if found.read(file) != now:
        first, last = found.differs_from(read, block)
        raise InputError(
            f"{place}, rows {first:,} to {last:,}: another content than when the block was "
            f"finished. The file had {_described(file, read.version)}, now {file.described()}. "
            f"{_ADVICE}"
        )
    checkpoints.discovered.write_same(block, now)


def same_blocks(
    file: SourceFile, blocks: list[Block], version: str | None, work: Work
) -> list[Block]:
    """The blocks of a file that an earlier run found; raises InputError if it has others now.

    version: of the file then; None if that run did not record it.
    """
    if version is None:
        _check_known(file, file.path, work)
    elif version != file.version:
        if blocks != discover_blocks(file, work.settings.columns, work.settings.block_bytes):
            raise InputError(
                f"{file.path} changed since the job was launched: its blocks of rows are other "
                f"ones. It had {_described(file, version)}, now {file.described()}. {_ADVICE}"
            )
        work.checkpoints.discovered.write_blocks(file.index, blocks, file.version, again=True)
    return blocks


def _check_known(file: SourceFile, place: str, work: Work) -> None:
    """Raises InputError for a file of another time, of which no hash says what was read."""
    if file.index in work.checkpoints.discovered.read_versions():
        raise InputError(
            f"{place}: the file has the size but not the time or version that it had, and an "
            "earlier version of fineshards, which recorded no hash of the rows, began the job. Put "
            "the old time back (touch -d), choose another --output, or start over with "
            "--overwrite."
        )


def _described(file: SourceFile, version: str) -> str:
    return describe_state(file.size, version.partition("\n")[0])
