"""Why a document is dropped, with what was measured and the bound that it does not keep."""

from __future__ import annotations


class Reason(str):
    """A reason, which is all that is stored and counted, and how the document came to it.

    measured: in words, such as "0.78 of the words have a letter, below 0.8: PARAMETER".
    """

    measured: str

    def __new__(cls, reason: str, measured: str) -> Reason:
        """The reason as text."""
        found = super().__new__(cls, reason)
        found.measured = measured
        return found

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (str(self), self.measured)


def below(reason: str, value: float, what: str, bound: float, parameter: str) -> Reason:
    """A reason: a value is below the bound of a parameter."""
    return compared(reason, value, what, "below", bound, parameter)


def above(reason: str, value: float, what: str, bound: float, parameter: str) -> Reason:
    """A reason: a value is above the bound of a parameter."""
    return compared(reason, value, what, "above", bound, parameter)


def compared(
    reason: str, value: float, what: str, how: str, bound: float, parameter: str
) -> Reason:
    """A reason: how a value compares with a bound, with the digits that tell the two apart."""
    shown = f"{value:,}"
    if isinstance(value, float):
        rounded = (f"{value:.{digits}g}" for digits in range(2, 18))
        shown = next(each for each in rounded if (float(each) == bound) == (value == bound))
        shown += ".0" * shown.isdecimal()
    return Reason(reason, f"{shown} {what}, {how} {bound:,}: {parameter}")
