"""`metadata/croissant.json`: the dataset in Croissant 1.1, a JSON-LD vocabulary for ML datasets.

Shards are files, which Croissant cannot read. The document tables are records: their columns are
fields, and their split follows from the file's name. The specification:
https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from msgspec import convert, to_builtins
from msgspec.json import encode

from fineshards.errors import OutputError
from fineshards.publishing import facts, sums
from fineshards.publishing.facts import PERSON, Description
from fineshards.publishing.sums import CROISSANT_NAME, SUMS_NAME, Sums
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.settings import TIKTOKEN
from fineshards.shards.layout import SPLITS, mask_name
from fineshards.shards.record import seal_holds, sealed
from fineshards.shards.tables.documents import LEARNED, table_schema

_CONFORMS_TO = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")
# A file's format that has no media type is named by the page that defines it.
_NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_JSON, _PARQUET, _TEXT = "application/json", "application/x-parquet", "text/plain"

_OWNERS = {"license": "license", "url": "url", "date_published": "datePublished"}
_OWNERS |= {"name": "name", "citation": "citeAs"}
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


def to_bytes(manifest: Manifest, digests: Sums, description: Description) -> bytes:
    """The content of `metadata/croissant.json`. digests: what `SHA256SUMS` lists."""
    import mlcroissant as mlc

    context = mlc.Context(conforms_to=_CONFORMS_TO[0])
    # Terms of Croissant 1.1 that the library expects, and writes for 1.0 only.
    terms = {name: f"cr:{name}" for name in ("arrayShape", "containedIn", "isArray")}
    texts = {name: {"@container": "@language"} for name in ("description", "name")}
    context.rdf.context |= terms | texts | {"prov": "http://www.w3.org/ns/prov#"}

    def make(kind: str, at: str, about: str, **more: Any) -> Any:
        name = at.rpartition("/")[2]
        return getattr(mlc, kind)(ctx=context, id=at, name=name, description=about, **more)

    kind = mlc.Person if description.creator.startswith(PERSON) else mlc.Organization
    creator = kind(ctx=context, name=description.creator.removeprefix(PERSON).strip())
    dataset = mlc.Metadata(
        ctx=context,
        conforms_to=list(_CONFORMS_TO),
        name=description.name or facts.default_name(manifest),
        description="\n\n".join(filter(None, [description.description, facts.in_short(manifest)])),
        license=[description.license] if description.license else None,
        creators=[creator] if description.creator else [],
        url=description.url or None,
        date_published=description.date_published or None,
        cite_as=description.citation or None,
        version=facts.version(manifest),
        in_language=facts.languages(manifest),
        keywords=["language modeling", "tokens", manifest.settings.tokenizer.name],
        data_preprocessing_protocol=facts.steps(manifest),
        data_limitations=list(facts.limits(manifest)),
        distribution=[*_files(make, manifest, digests)],
        record_sets=[_splits(make, manifest), _documents(make, manifest)],
        extra_properties={
            "identifier": f"urn:fineshards:content:{manifest.content_fingerprint}",
            "ownerSays": to_builtins(description),
            "prov:wasDerivedFrom": [
                {"@type": "prov:Entity", "prov:label": line} for line in facts.inputs(manifest)
            ],
            "prov:wasGeneratedBy": {
                "@type": "prov:Activity",
                "prov:label": f"fineshards {manifest.versions['fineshards']}",
            },
        },
    )
    return sealed(encode(dataset.to_json())) + b"\n"


def read(content: bytes) -> tuple[Description, str]:
    """The owner's facts about a dataset, and the SHA-256 of `SHA256SUMS`.

    Raises OutputError for a `metadata/croissant.json` that is damaged.
    """
    try:
        if not (content.endswith(b"\n") and seal_holds(content[:-1])):
            raise ValueError("its content is not what its checksum says")
        fields: dict[str, Any] = json.loads(content)
        (digest,) = [file["sha256"] for file in fields["distribution"] if file["@id"] == SUMS_NAME]
        # Files without ownerSays have the same in the fields of Croissant alone.
        stated = {name: fields[key] for name, key in _OWNERS.items() if key in fields}
        stated["description"] = fields["description"].rpartition("\n\n")[0]
        if creator := fields.get("creator"):
            stated["creator"] = PERSON * (creator["@type"] == "sc:Person") + creator["name"]
        return convert(fields.get("ownerSays", stated), Description), digest
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OutputError(
            f"{CROISSANT_NAME} is damaged. Delete it, and run fineshards publish with its flags."
        ) from error


def _files(make: Callable[..., Any], manifest: Manifest, listed: Sums) -> Iterator[Any]:
    """The files, one by one but for the document tables."""
    sizes = {name: size for name, (size, _) in sums.contents(manifest).items()}
    content = sums.to_bytes(listed)
    sizes[SUMS_NAME] = len(content)
    digests = {**listed, SUMS_NAME: hashlib.sha256(content).hexdigest()}

    def file(name: str, encoding: str, about: str) -> Any:
        # Relative to this file, which is in metadata/.
        folder, _, last = name.rpartition("/")
        more = {"content_url": last if folder == "metadata" else f"../{name}"}
        more |= {"content_size": f"{sizes[name]} B", "sha256": digests[name]}
        return make("FileObject", name, about, encoding_formats=[encoding], **more)

    tokenizer = manifest.settings.tokenizer
    dtype = manifest.settings.token_dtype.str
    for shard in manifest.shards:
        about = f"{shard.tokens:,} tokens as a NumPy array of the type {dtype}."
        yield file(shard.name, _NPY, about)
        if shard.mask_bytes is not None:
            about = (
                f"The loss mask of {shard.name}: a bit for each of its {shard.tokens:,} tokens, 1 "
                "where it is learned. The first is the lowest bit of the first byte."
            )
            yield file(mask_name(shard.name), _NPY, about)
    about = "What the dataset holds and how it was built, with the size and checksum of each file."
    yield file(MANIFEST_NAME, _JSON, about)
    encoding = _TEXT if tokenizer.kind == TIKTOKEN else _JSON
    yield file(tokenizer.file, encoding, f"The tokenizer, {tokenizer.name}.")
    for name in manifest.settings.stored_files[1:]:
        yield file(name, _TEXT, "The chat template, in Jinja.")
    yield file(SUMS_NAME, _TEXT, "The SHA-256 of each file of the dataset.")
    about = "A table per shard: which tokens belong to which document."
    yield make("FileSet", _TABLES, about, encoding_formats=[_PARQUET], includes=["documents/*"])


def _splits(make: Callable[..., Any], manifest: Manifest) -> Any:
    from mlcroissant import DataType

    there = [split for split in SPLITS if any(shard.split == split for shard in manifest.shards)]
    return make(
        "RecordSet",
        "splits",
        "The splits.",
        data_types=[DataType.SPLIT],
        key=["splits/name"],
        fields=[
            make("Field", "splits/name", "The name of the split.", data_types=[DataType.TEXT]),
            make("Field", "splits/url", "What it is for.", data_types=[DataType.URL]),
        ],
        data=[{"splits/name": split, "splits/url": _SPLIT_KINDS[split]} for split in there],
    )


def _documents(make: Callable[..., Any], manifest: Manifest) -> Any:
    from mlcroissant import DataType, Extract, Source, Transform

    def field(name: str, about: str, kind: Any, extract: Extract, *regex: str, **more: Any) -> Any:
        # The expression is applied twice by mlcroissant: also to what it finds.
        transforms = [Transform(regex=pattern) for pattern in regex]
        more |= {"source": Source(file_set=_TABLES, extract=extract, transforms=transforms)}
        return make("Field", f"documents/{name}", about, data_types=[kind], **more)

    # From the name of the table.
    name, path = Extract(file_property="filename"), Extract(file_property="fullpath")
    to_splits = Source(field="splits/name")
    text, about = DataType.TEXT, "The split."
    fields = [field("split", about, text, name, "^(test|train)", references=to_splits)]
    about = "The shard that its tokens are in: train_0000 is the file train/train_0000.npy."
    # Of the path, because mlcroissant changes the name where the split is found.
    regex = "^.*?((?:test|train)_[0-9]+)(?:[.]parquet)?$"
    fields.append(field("shard", about, text, path, regex))
    columns = [*table_schema(manifest.settings.split)]
    columns += [LEARNED] * (manifest.settings.chat is not None)
    for column in columns:
        is_list = pa.types.is_list(column.type)
        kind = DataType.INTEGER if is_list or pa.types.is_integer(column.type) else text
        more = {"is_array": True, "array_shape": "-1"} if is_list else {}
        about, extract = _COLUMNS[column.name], Extract(column=column.name)
        fields.append(field(column.name, about, kind, extract, **more))
    about = (
        "The documents of each shard, in order. A document that goes on in the next shard has a "
        "record for each."
    )
    return make("RecordSet", "documents", about, fields=fields)
