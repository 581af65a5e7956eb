"""The graph: the steps, wired together. Nothing here decides a byte."""

import apache_beam as beam

from fineshards.pipeline.share import Share
from fineshards.transforms.blocks import Discover, ReadCounts, Tokenize
from fineshards.transforms.commit import Commit, CompareTexts
from fineshards.transforms.mark_later import MarkLater, judge_blocks
from fineshards.transforms.shards import FileReports, Plan, WithEarlier, WriteShards, WriteTables
from fineshards.transforms.shuffle_documents import ShuffleDocuments
from fineshards.worker.work import Work


def build_share(root: beam.Pipeline, work: Work, share: Share, part: str, stage: int) -> None:
    """Adds a share of a part of the job to a pipeline: see `part_of` in share.py.

    stage: of the recipe's stages with a keyed step, if one is judged or compared. What other parts
    have made is found in the checkpoints. Nothing is committed.
    """
    blocks = root | "Discover" >> Discover(work)
    mine = blocks | "Mine" >> beam.Filter(lambda pair: share.has(pair[0].index + pair[1].index))
    if part == "judge":
        _ = mine | "Judge" >> judge_blocks(work, stage)
    elif part == "compare":
        _ = blocks | "MarkLater" >> MarkLater(work, stage)
    elif part == "tokenize":
        _ = mine | "Tokenize" >> Tokenize(work)
    else:
        read = blocks | "Counts" >> ReadCounts(work) | "Report" >> FileReports()
        planned = read["by_file"] | "Plan" >> Plan(work, read["reports"])
        pieces = planned["pieces"] | "MyShards" >> beam.Filter(lambda each: share.has(each[0][1]))
        _ = pieces | "Write" >> WriteShards(work, planned["plan"])


def build_pipeline(root: beam.Pipeline, work: Work) -> beam.PCollection:
    """Adds the job to a pipeline; returns the collection that holds the manifest's name.

    When it runs, the job record and the vocabulary must be in storage (`pipeline.launch`).
    """
    recipe = work.settings.recipe
    discovered = root | "Discover" >> Discover(work)
    for stage, step in enumerate(recipe.keyed if recipe else ()):
        discovered = discovered | f"MarkLater{step + 1}" >> MarkLater(work, stage)
    summaries = discovered | "Tokenize" >> Tokenize(work)
    read = blocks = summaries | "Report" >> FileReports()
    folder = "blocks"
    if work.settings.shuffle is not None:
        buckets = read["by_file"] | "Shuffle" >> ShuffleDocuments(work, read["reports"])
        blocks, folder = buckets | "ReportBuckets" >> FileReports(), "buckets"
    planned = blocks["by_file"] | "Plan" >> Plan(work, blocks["reports"], folder)
    records = planned["pieces"] | "Write" >> WriteShards(work, planned["plan"])
    if work.earlier:
        records = records | "AllShards" >> WithEarlier(work)
    compares = work.earlier or work.settings.split.may_leak
    shared = records | "CompareTexts" >> CompareTexts(work) if compares else None
    files = read["by_file"] | "Tables" >> WriteTables(work) if work.settings.statistics else None
    return records | "Commit" >> Commit(work, read, planned["plan"], shared, files)
