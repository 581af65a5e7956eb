"""Export: from the parts of an export to its files."""

import apache_beam as beam

from fineshards.exports.export_job import ExportJob, finish, write_part
from fineshards.exports.parts import Part
from fineshards.exports.record import PartRecord
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.transforms.run_tasks import Gather, count


class WriteExport(beam.PTransform):
    """From nothing to the name of `export.json`. A part is one element."""

    def __init__(self, job: ExportJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Builds the step."""
        return (
            root
            | "Parts" >> beam.Create(self._job.parts)
            | "Spread" >> beam.Reshuffle()
            | "Write" >> beam.ParDo(_WritePart(self._job))
            | "AllParts" >> Gather()
            | "Finish" >> beam.Map(_finish, self._job)
        )


class _WritePart(beam.DoFn):
    def __init__(self, job: ExportJob) -> None:
        self._job = job

    def process(self, part: Part) -> list[PartRecord]:
        """Called by Beam for each part."""
        record = write_part(self._job, part)
        written = sum(file.bytes for file in record.files)
        count("export", parts_in=1, tokens_out=record.tokens, bytes_out=written)
        return [record]


def _finish(records: list[PartRecord], job: ExportJob) -> str:
    finish(job, records)
    return EXPORT_NAME
