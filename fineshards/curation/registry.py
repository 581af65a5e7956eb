"""The steps that a recipe can name, and where each is. Nothing is imported before it is used."""

from __future__ import annotations

# By the name that follows `use =` in a recipe: module and class.
STEPS = {
    "c4_badwords": ("c4_badwords", "C4BadWords"),
    "c4_paragraphs": ("c4_paragraphs", "C4Paragraphs"),
    "c4_quality": ("c4_quality", "C4Quality"),
    "decontaminate": ("decontaminate", "Decontaminate"),
    "exact": ("exact_duplicates", "Exact"),
    "fasttext": ("fasttext_labels", "FastText"),
    "fineweb_quality": ("fineweb_quality", "FineWebQuality"),
    "ftfy": ("ftfy_text", "Ftfy"),
    "gopher_quality": ("gopher_quality", "GopherQuality"),
    "gopher_repetition": ("gopher_repetition", "GopherRepetition"),
    "language": ("language", "Language"),
    "length": ("length", "Length"),
    "lines": ("spans", "Lines"),
    "minhash": ("minhash", "MinHash"),
    "paragraphs": ("spans", "Paragraphs"),
    "pii": ("pii", "Pii"),
    "regex": ("pattern", "Regex"),
    "sample": ("sample", "Sample"),
    "seen_in": ("other_datasets", "SeenIn"),
    "sentences": ("spans", "Sentences"),
    "symbol_lines": ("symbol_lines", "SymbolLines"),
    "unigram": ("unigram", "Unigram"),
    "url": ("url", "Url"),
    "where": ("where", "Where"),
}
