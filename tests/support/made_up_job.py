"""A job of three files that were never read."""

import hashlib

from fineshards.shards.job.job import Job
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns, Settings, Tokenizer
from fineshards.shards.split_rule import FirstShards

RANKS = b"IQ== 0\n"
TOKENIZER = Tokenizer(
    "tiktoken", "tiny", hashlib.sha256(RANKS).hexdigest(), "", (("<|eot|>", 1),), 1, 2, ""
)
SETTINGS = Settings(Columns("text", "id", False), TOKENIZER, 10, FirstShards(1), 1, "uint32")
FILES = tuple(SourceFile(n, f"/in/{n}", 1, "mtime:0", "jsonl", "none") for n in range(3))
JOB = Job(SETTINGS, FILES, {})
