"""Writes one recipe for many languages from FineWeb-2's thresholds, which are a file per language.

pip install '.[curation,languages]'
git clone https://github.com/huggingface/fineweb-2
python examples/fineweb2_recipe.py fineweb-2/configs deu_Latn=de cmn_Hani=zh > recipe.toml

A language has its name in the files, which is GlotLID's, and after = the name of the rules for its
words; `xx` are spaCy's for any language. The input needs the columns `language`, with names as
in the files, and `language_score`. Documents in other languages are dropped.
"""

import argparse
import json
from pathlib import Path

import yaml

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("configs", type=Path, help="the folder with the files")
parser.add_argument("languages", nargs="+", help="as in deu_Latn=de")
args = parser.parse_args()

rules = dict(language.split("=") for language in args.languages)
configs = {label: yaml.safe_load((args.configs / f"{label}.yml").read_text()) for label in rules}


def table(head: str, values: dict) -> None:
    """Prints a table of TOML; lists, texts, numbers and false are as in JSON."""
    print(head)
    for name, value in values.items():
        print(name, "=", json.dumps(value, ensure_ascii=False))


def step(use: str, parameters: dict, own: dict[str, str], words: bool = True) -> None:
    """Prints a step with a table for each language. own: names of parameters, as in the files."""
    table("\n[[steps]]", {"use": use, "language_column": "language", **parameters})
    for label, config in configs.items():
        values = {name: config[theirs] for name, theirs in own.items()}
        language = {"language": rules[label]} if words else {}
        table("[[steps.per_language]]", {"label": label, **language, **values})


print('description = "FineWeb-2, for', ", ".join(rules) + '"')

# The steps of FineWeb-2, in its order. A document in another language meets the step's own sql.
for config in configs.values():
    config["sql"] = f"language_score >= {config['language_score']}"
step("where", {"sql": "false"}, {"sql": "sql"}, words=False)
minhash = {"use": "minhash", "verify": "none", "numbers": "alike", "within": "column:language"}
table("\n[[steps]]", minhash)
step(
    "gopher_repetition",
    {"dup_para_frac": False, "dup_para_char_frac": False, "dup_line_char_frac": False},
    {name: name for name in ("dup_line_frac", "top_n_grams", "dup_n_grams")},
)
step(
    "fineweb_quality",
    {"short_line_thr": False, "char_duplicates_ratio": 0.1},
    {name: name for name in ("line_punct_thr", "new_line_ratio")},
)
lengths = ("min_avg_word_length", "max_avg_word_length", "max_non_alpha_words_ratio")
step("gopher_quality", {}, {name: name for name in lengths} | {"stop_words": "stopwords"})
for use, parameters in (("ftfy", {}), ("pii", {}), ("symbol_lines", {"symbols_to_remove": ["|"]})):
    table("\n[[steps]]", {"use": use, **parameters})
