"""`metadata/croissant.json`: the dataset in Croissant 1.1, a JSON-LD vocabulary for ML datasets.

Shards are files, which Croissant cannot read. The document tables are records: their columns are
fields, and their split follows from the file's name. The specification:
https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from fineshards.errors import OutputError, UsageError
from fineshards.publishing import facts, sums
from fineshards.publishing.description import PERSON, Description
from fineshards.publishing.file_names import CROISSANT_NAME, SUMS_NAME
from fineshards.publishing.sums import Sums
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.records import JSON_ERRORS, as_text
from fineshards.shards.job.seal import sealed
from fineshards.shards.job.settings import TIKTOKEN
from fineshards.shards.layout import SPLITS, mask_name
from fineshards.shards.tables.documents import LEARNED, table_schema

_CONFORMS_TO = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")
# The context of the specification, appendix 1, with what mlcroissant adds to it, and PROV-O.
_TERMS = (
    *("annotation", "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty"),
    *("excludes", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path"),
    *("readLines", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("sdVersion", "separator", "source", "subField", "transform", "unArchive", "value"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS},
}
# A file's format that has no media type is named by the page that defines it.
_NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_PARQUET = "application/x-parquet"
_JSON = "application/json"
_TEXT = "text/plain"

# Followed by the version of fineshards that wrote this file, and by a flag that it was given.
_PUBLISHED_BY = "fineshards publish "
_NO_PATHS = " --no_paths"
_CONTENT = "urn:fineshards:content:"
_TABLES = "document-tables"
_SPLIT_KINDS = {"test": "cr:TestSplit", "train": "cr:TrainingSplit"}
_COLUMNS = {
    "document": "Number of the document in its split, from 0; in both splits together where the "
    "test split is a number of shards.",
    "offset": "Offset in the shard of the first of its tokens there.",
    "length": "Number of its tokens in the shard, with its end-of-text token.",
    "start": "Number of its tokens in earlier shards; 0 if the document begins here.",
    "file": "Its source file.",
    "row": "Its row in the source file, from 0.",
    "id": "Its id in the source.",
    "split_hash": "Hash of its split key, which decides its split.",
    "text_hash": "Hash of its text.",
    "learned": "The begin and the end of each range of its tokens that is learned, in "
    "order; counted from its end-of-text token, in whichever shard that is.",
    "redacted": "The generation that overwrote its tokens by the end-of-text token; 0 for none.",
}


def to_bytes(manifest: Manifest, found: Sums, said: Description) -> bytes:
    """The content of `metadata/croissant.json`. found: the SHA-256 of each file of the dataset."""
    name = said.name or facts.default_name(manifest)
    content = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": list(_CONFORMS_TO),
        "name": name,
        "description": "\n\n".join(filter(None, [said.description, facts.in_short(manifest)])),
        "license": said.license,
        "creator": said.creator and _creator(said.creator),
        "url": said.url,
        "identifier": f"{_CONTENT}{manifest.content_fingerprint}",
        "datePublished": said.date_published,
        "citeAs": said.citation,
        "version": facts.version(manifest),
        "inLanguage": facts.languages(manifest),
        "keywords": ["language modeling", "tokens", manifest.settings.tokenizer.name],
        "prov:wasDerivedFrom": [
            {"@type": "prov:Entity", "prov:label": line} for line in facts.inputs(manifest)
        ],
        "prov:wasGeneratedBy": [
            {"@type": "prov:Activity", "prov:label": label}
            for label in (
                f"fineshards {manifest.versions['fineshards']}",
                f"{_PUBLISHED_BY}{version('fineshards')}{_NO_PATHS * said.no_paths}",
            )
        ],
        "rai:dataPreprocessingProtocol": facts.steps(manifest),
        "rai:dataLimitations": list(facts.limits(manifest)),
        "distribution": [*_files(manifest, found), _tables()],
        "recordSet": [_splits(manifest), _documents(manifest)],
    }
    kept = {key: value for key, value in content.items() if value not in ("", [])}
    return sealed(kept, ensure_ascii=False) + b"\n"


def said_in(content: bytes, manifest: Manifest) -> Description:
    """What the owner of a dataset said in a `metadata/croissant.json`.

    Raises OutputError for a file that `to_bytes` has not written.
    """
    with _damage_reported():
        fields = _unsealed(content)
        creator = fields.get("creator", {})
        prefix = PERSON if creator.get("@type") == "sc:Person" else ""
        found = Description(
            name=as_text(fields["name"]),
            # The last paragraph is not the owner's.
            description=as_text(fields["description"]).rpartition("\n\n")[0],
            license=as_text(fields.get("license", "")),
            creator=prefix + as_text(creator.get("name", "")),
            url=as_text(fields.get("url", "")),
            date_published=as_text(fields.get("datePublished", "")),
            citation=as_text(fields.get("citeAs", "")),
            no_paths=_published_by(fields).endswith(_NO_PATHS),
        )
        found.check()
    return replace(found, name="") if found.name == facts.default_name(manifest) else found


def other_version(content: bytes) -> str:
    """The version of fineshards that wrote a `metadata/croissant.json`; empty for this one.

    Raises OutputError for a file that no version has written.
    """
    with _damage_reported():
        wrote = _published_by(_unsealed(content)).removesuffix(_NO_PATHS)
    return "" if wrote == version("fineshards") else wrote


def _published_by(fields: dict[str, Any]) -> str:
    """The version that wrote the file, and its flag."""
    labels = [as_text(each["prov:label"]) for each in fields["prov:wasGeneratedBy"]]
    (found,) = (label for label in labels if label.startswith(_PUBLISHED_BY))
    return found.removeprefix(_PUBLISHED_BY)


@contextmanager
def _damage_reported() -> Iterator[None]:
    """Turns what damaged JSON raises into an OutputError."""
    try:
        yield
    except (UsageError, *JSON_ERRORS) as error:
        raise OutputError(
            f"{CROISSANT_NAME} is damaged. Delete it, and run fineshards publish with its flags."
        ) from error


def _unsealed(content: bytes) -> dict[str, Any]:
    """The fields of the file; raises ValueError if they are not what its seal says.

    Versions up to 0.2 wrote none.
    """
    fields: dict[str, Any] = json.loads(content)
    found = fields.pop("crc32c", None)
    if found is not None and sealed(fields, ensure_ascii=False) + b"\n" != content:
        raise ValueError("its content is not what its checksum says")
    return fields


def _creator(text: str) -> dict[str, str]:
    kind = "sc:Person" if text.startswith(PERSON) else "sc:Organization"
    return {"@type": kind, "name": text.removeprefix(PERSON).strip()}


def _files(manifest: Manifest, found: Sums) -> Iterator[dict[str, Any]]:
    """The files that are described one by one: all but the document tables."""
    sizes = {name: size for name, (size, _) in sums.contents(manifest).items()}
    tokenizer = manifest.settings.tokenizer
    dtype = manifest.settings.token_dtype.str
    for shard in manifest.shards:
        about = f"{shard.tokens:,} tokens as a NumPy array of the type {dtype}."
        yield _file(shard.name, _NPY, sizes[shard.name], found[shard.name], about)
        if shard.mask_bytes is not None:
            about = (
                f"The loss mask of {shard.name}: a bit for each of its {shard.tokens:,} tokens, 1 "
                "where it is learned. The first is the lowest bit of the first byte."
            )
            mask = mask_name(shard.name)
            yield _file(mask, _NPY, sizes[mask], found[mask], about)
    about = "What the dataset holds and how it was built, with the size and checksum of each file."
    yield _file(MANIFEST_NAME, _JSON, sizes[MANIFEST_NAME], found[MANIFEST_NAME], about)
    about, kind = f"The tokenizer, {tokenizer.name}.", tokenizer.kind
    format_ = _TEXT if kind == TIKTOKEN else _JSON
    yield _file(tokenizer.file, format_, sizes[tokenizer.file], found[tokenizer.file], about)
    for name in manifest.settings.stored_files[1:]:
        yield _file(name, _TEXT, sizes[name], found[name], "The chat template, in Jinja.")
    listed = sums.to_bytes(found)
    about = "The SHA-256 of each file of the dataset."
    yield _file(SUMS_NAME, _TEXT, len(listed), hashlib.sha256(listed).hexdigest(), about)


def _node(kind: str, at: str, about: str, **more: Any) -> dict[str, Any]:
    """A node with an id; the last part of it is its name."""
    last = at.rpartition("/")[2]
    return {"@type": f"cr:{kind}", "@id": at, "name": last, "description": about, **more}


def _file(name: str, kind: str, size: int, digest: str, about: str) -> dict[str, Any]:
    # Relative to this file, which is in metadata/.
    folder, _, last = name.rpartition("/")
    return _node(
        "FileObject",
        name,
        about,
        contentUrl=last if folder == "metadata" else f"../{name}",
        contentSize=f"{size} B",
        encodingFormat=kind,
        sha256=digest,
    )


def _tables() -> dict[str, Any]:
    about = "A table per shard: which tokens belong to which document."
    included = "documents/*.parquet"
    return _node("FileSet", _TABLES, about, encodingFormat=_PARQUET, includes=included)


def _splits(manifest: Manifest) -> dict[str, Any]:
    there = [split for split in SPLITS if any(shard.split == split for shard in manifest.shards)]
    return _node(
        "RecordSet",
        "splits",
        "The splits.",
        dataType="cr:Split",
        key={"@id": "splits/name"},
        field=[
            {"@type": "cr:Field", "@id": "splits/name", "name": "name", "dataType": "sc:Text"},
            {"@type": "cr:Field", "@id": "splits/url", "name": "url", "dataType": "sc:URL"},
        ],
        data=[{"splits/name": split, "splits/url": _SPLIT_KINDS[split]} for split in there],
    )


def _documents(manifest: Manifest) -> dict[str, Any]:
    split = {
        **_of_table("split", "filename", "^(test|train)", "The split, from the name of the table."),
        "references": {"field": {"@id": "splits/name"}},
    }
    about = "The shard that its tokens are in: train_0000 is the file train/train_0000.npy."
    # Of the path, because mlcroissant changes the name where the split is found.
    at_end = "^.*?((?:test|train)_[0-9]+)(?:[.]parquet)?$"
    shard = _of_table("shard", "fullpath", at_end, about)
    schema = [*table_schema(manifest.settings.split)]
    if manifest.settings.chat is not None:
        schema.append(LEARNED)
    about = (
        "The documents of each shard, in order. A document that goes on in the next shard has a "
        "record for each."
    )
    return _node("RecordSet", "documents", about, field=[split, shard, *map(_column, schema)])


def _of_table(name: str, what: str, regex: str, about: str) -> dict[str, Any]:
    """A field whose values are a part of the names of the tables."""
    # The expression is applied twice by mlcroissant: also to what it finds.
    source = {"extract": {"fileProperty": what}, "transform": {"regex": regex}}
    return _field(name, about, "sc:Text", source)


def _column(field: pa.Field) -> dict[str, Any]:
    is_list = pa.types.is_list(field.type)
    kind = "sc:Integer" if is_list or pa.types.is_integer(field.type) else "sc:Text"
    found = _field(field.name, _COLUMNS[field.name], kind, {"extract": {"column": field.name}})
    return found | {"isArray": True, "arrayShape": "-1"} if is_list else found


def _field(name: str, about: str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    whole = {"fileSet": {"@id": _TABLES}, **source}
    return _node("Field", f"documents/{name}", about, dataType=kind, source=whole)
