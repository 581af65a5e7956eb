"""Work: the one object that every step gets."""

from dataclasses import dataclass, fields

from fineshards.config import BuildConfig
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.settings import Settings
from fineshards.shards.piece_plan import NO_EARLIER, EarlierGeneration, Places


@dataclass(frozen=True, slots=True)
class Work:
    """A launched job as its steps see it. Small, because it is pickled into each step.

    earlier: what the dataset holds already. shared: whether other machines make token blocks, which
    are not trusted before they are checked. inline: whether keys of duplicates cross the runner's
    shuffle as bytes; otherwise, as references to files, because a local runner holds its shuffle in
    memory. The options decide no byte; BuildConfig describes them. For a repair: decided: whether
    all decisions of the recipe are in the storage. redacted: documents, as (file, row), whose
    tokens become EOT.
    """

    checkpoints: Checkpoints
    settings: Settings
    earlier: EarlierGeneration = NO_EARLIER
    tokenizer_engine: str = "auto"
    memory_bytes: int | None = None
    max_bad_rows: int | str = 0
    keep_checkpoints: bool = False
    fail_on_leak: bool = False
    fail_on_repeats: bool = False
    allow_constant_mask: bool = False
    inline: bool = False
    shared: bool = False
    decided: bool = False
    redacted: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls,
        checkpoints: Checkpoints,
        job: Job,
        config: BuildConfig,
        earlier: EarlierGeneration = NO_EARLIER,
        inline: bool = False,
    ) -> "Work":
        """The work of a job."""
        names = [field.name for field in fields(cls)]
        given = {name: getattr(config, name) for name in names if hasattr(config, name)}
        shared = config.share is not None
        return cls(checkpoints, job.settings, earlier, **given, inline=inline, shared=shared)

    def places(self) -> Places | None:
        """What finds the places of tokens while the job's blocks are tokenized.

        None on object storage, whose files cannot be changed; with a shuffle, which puts documents
        in order only when all are tokenized; and once there is a plan, because shards that it names
        may have been published.
        """
        checkpoints, settings = self.checkpoints, self.settings
        if not checkpoints.storage.on_disk or settings.shuffle or checkpoints.read_layout():
            return None
        return Places(settings.shard_tokens, settings.split, self.earlier)
