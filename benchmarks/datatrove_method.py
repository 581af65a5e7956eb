"""datatrove's tokenizer step as in its documentation: a reader and DocumentTokenizer, locally.

Choices favour datatrove: only the columns that it needs are read, nothing is shuffled, and the
tokens go straight to the output. EOT comes after each document, not before.

Run as `python datatrove_method.py INPUT OUTPUT TOKENIZER`, in the peers' environment.
"""

import os
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main(source: Path, output: Path, tokenizer: Path) -> None:
    """Tokenizes a folder of parquet files, one token file per task; logs go next to the output."""
    workers = os.cpu_count() or 1
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(str(source), glob_pattern="*.parquet", read_metadata=False),
            DocumentTokenizer(
                str(output),
                tokenizer_name_or_path=str(tokenizer),
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=workers,
        workers=workers,
        logging_dir=str(output.with_name(output.name + "-logs")),
    ).run()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
