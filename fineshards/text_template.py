"""Templates of a text: literal text, and names of columns in braces."""

import re
from functools import cache

_PART = re.compile(r"[^{}]+|\{\{|\}\}|\{([^{}]+)\}")


@cache
def template_parts(template: str) -> tuple[str, ...]:
    """Literal text and names of columns in turn, with literal text, maybe empty, at both ends.

    Raises ValueError with the reason if it names no column, or has a brace that is not of a pair.

    Example:
        >>> template_parts("{title}:\\n{text} {{end}}")
        ('', 'title', ':\\n', 'text', ' {end}')
    """
    parts, at = [""], 0
    while at < len(template):
        match = _PART.match(template, at)
        if match is None:
            raise ValueError(
                f"the brace at character {at} does not belong to a {{NAME}} of a column; write "
                "{{ and }} for braces"
            )
        if match[1] is not None:
            parts += [match[1], ""]
        else:
            parts[-1] += match[0][0] if match[0] in ("{{", "}}") else match[0]
        at = match.end()
    if len(parts) == 1:
        raise ValueError("it names no column; write {NAME} for the value of the column NAME")
    return tuple(parts)
