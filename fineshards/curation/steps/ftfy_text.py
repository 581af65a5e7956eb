"""Repairs text that was decoded wrongly, with ftfy: datatrove's FTFYFormatter."""

import unicodedata
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import one_of, rule
from fineshards.curation.step import Judge, Outcome
from fineshards.extras import naming_the_extra, require


def _is_auto_or_flag(value: Any) -> bool:
    return value == "auto" or isinstance(value, bool)


@dataclass(frozen=True)
class Ftfy(Judge, name="ftfy"):
    """Rewrites text that was decoded with the wrong encoding, and removes control characters.

    The parameters are those of ftfy's TextFixerConfig, whose documentation describes them, but for
    three that `ftfy.fix_text` ignores. The defaults are datatrove's: what makes text uniform
    (quotes, widths, line breaks) is off.

    Args:
        unescape_html: "auto", true or false.
        remove_terminal_escapes: Whether to remove the escapes that colour a terminal.
        fix_encoding: Whether to repair text that was decoded with the wrong encoding.
        fix_c1_controls: Whether to read C1 control characters as Windows-1252.
        fix_latin_ligatures: Whether to split ligatures.
        fix_character_width: Whether to replace halfwidth and fullwidth characters.
        uncurl_quotes: Whether to straighten quotes.
        fix_line_breaks: Whether to make all line breaks "\\n".
        fix_surrogates: Whether to join surrogates.
        remove_control_chars: Whether to remove control characters.
        normalization: "NFC", "NFD", "NFKC", "NFKD", or None to leave the form as it is.

    Example:
        >>> Ftfy().apply(Batch.of_texts(["schÃ¶n", "“plain”"])).texts
        ['schön', '“plain”']
    """

    REWRITES: ClassVar[bool] = True

    unescape_html: Annotated[str | bool, rule('"auto", true or false', _is_auto_or_flag)] = "auto"
    remove_terminal_escapes: bool = True
    fix_encoding: bool = True
    fix_c1_controls: bool = True
    fix_latin_ligatures: bool = False
    fix_character_width: bool = False
    uncurl_quotes: bool = False
    fix_line_breaks: bool = False
    fix_surrogates: bool = True
    remove_control_chars: bool = True
    normalization: Annotated[str, one_of("NFC", "NFD", "NFKC", "NFKD")] | None = None

    def pins(self) -> dict[str, str]:
        """See Step. The tables of Unicode decide as ftfy's heuristics do."""
        require("ftfy", "ftfy", "curation")
        return {"ftfy": version("ftfy"), "unicode": unicodedata.unidata_version}

    @naming_the_extra()
    def apply(self, batch: Batch) -> Outcome:
        import ftfy

        config = ftfy.TextFixerConfig(explain=False, **asdict(self))
        return Outcome(texts=[ftfy.fix_text(text, config) for text in batch.strings])
