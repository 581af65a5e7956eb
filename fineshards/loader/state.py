"""Saved states of a BatchLoader: checked, compared, and turned into a position."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fineshards.errors import UsageError, clipped, contrasted
from fineshards.loader.batches import Batches
from fineshards.loader.mixing.apportionment import MAX_DRAWS
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.permutation import ALGORITHM_VERSION
from fineshards.loader.sample_sources import Source
from fineshards.loader.steps import MOST_SAMPLES, Position, Ramp, Steps
from fineshards.shards.record import described

STATE_VERSION = 2
# Places of the order are computed in 64 bits.
_Place = Annotated[int, Meta(ge=0, le=1 << 61)]


class SavedState(Struct, frozen=True, forbid_unknown_fields=True):
    """A saved state. The fields before `step` decide the order of samples.

    samples: of the source; None for a mixture, whose own end may still change. since: the position
    from which the steps of the run are known.
    """

    version: int
    algorithm: int
    fingerprint: str
    samples: int | None
    sequence_length: int
    seed: int
    shuffle: bool
    shuffle_shards: int | None
    packing: str | None
    step: _Place
    consumed: _Place
    begin: _Place
    batch_size: int | str
    epochs: Annotated[int, Meta(ge=1)] | None
    drop_last: bool
    since: tuple[_Place, _Place, _Place]

    @classmethod
    def of(cls, state: Any) -> SavedState:
        """A state of plain values, or of numpy's and torch's; raises UsageError for others."""
        try:
            return msgspec.convert(msgspec.to_builtins(state, enc_hook=_plain), described(cls))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(
                "this is not the state of a BatchLoader of this version: "
                f"{clipped(str(error), 200)}. Pass what state_dict() returned."
            ) from None

    @property
    def position(self) -> Position:
        return Position(self.step, self.consumed, self.begin)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str) else operator.index(value)


class States:
    """The states of one loader: what it saves, and where a saved one leads.

    Attributes:
        source: What the loader reads.
        order: What the order of samples depends on. A state can be loaded only where all of it is
            equal.
    """

    def __init__(
        self,
        batches: Batches,
        source: Source | Mixture,
        choices: Mapping[str, Any],
        epochs: int | None,
    ) -> None:
        self.source, self._batches, self._epochs = source, batches, epochs
        self._mixture = source if isinstance(source, Mixture) else None
        self.order = {
            "algorithm": ALGORITHM_VERSION,
            # A mixture's is that of the draws so far; see `_order_of`.
            "fingerprint": None if self._mixture else source.fingerprint,
            # A mixture's fingerprint covers its sources' lengths.
            "samples": None if self._mixture else len(batches.sources[0]),
            "sequence_length": source.sequence_length,
            **choices,
        }

    def of(self, position: Position) -> dict[str, Any]:
        """The state at a position. All ranks' states are equal."""
        return {
            "version": STATE_VERSION,
            **self._order_of(position.consumed),
            **asdict(position),
            # All values are leaves, or have a fixed length: see `Ramp.saved`.
            **self._settings(),
            "since": list(astuple(self._batches.steps.first)),
        }

    def read(self, given: object) -> tuple[Position, Position]:
        """The position in a state, and from where the steps of the run are known.

        Raises UsageError if it belongs to another order of samples, or is not a state.
        """
        state = SavedState.of(given)
        position = position_in(state, self._batches.steps, self._epochs)
        self._refuse_beyond_end(position)
        order = {"version": STATE_VERSION, **self._order_of(position.consumed)}
        different = [
            f"{name} {contrasted(getattr(state, name), here, 'is {} in the state but {} here')}"
            for name, here in order.items()
            if getattr(state, name) != here
        ]
        if different:
            self._refuse_other_generation(state.fingerprint)
            raise UsageError(
                f"the state belongs to another order of samples: {'; '.join(different)}. Open the "
                "same dataset with the same arguments, in the version of fineshards that saved the "
                "state, or start without it."
            )
        check_position(state)
        # That is where the loader that saved it knew them from, if it had the same settings.
        same = all(getattr(state, name) == value for name, value in self._settings().items())
        return position, Position(*state.since) if same else position

    def _settings(self) -> dict[str, Any]:
        """What steps depend on in addition to the order."""
        steps = self._batches.steps
        return {
            "batch_size": steps.sizes.saved(),
            "epochs": self._epochs,
            "drop_last": steps.drop_last,
        }

    def _order_of(self, consumed: int) -> dict[str, Any]:
        """What the order of the first `consumed` samples depends on."""
        if self._mixture is None:
            return self.order
        return self.order | {"fingerprint": self._mixture.fingerprint_of(consumed)}

    def _refuse_beyond_end(self, position: Position) -> None:
        """Raises UsageError for more draws than a mixture has."""
        if self._mixture is not None:
            end = MAX_DRAWS if self._mixture.length is None else self._mixture.length
            if position.consumed > end:
                raise UsageError(
                    f"the state was saved after {position.consumed} samples, but the mixture ends "
                    f"after {end}. Give it the weights and the schedule of that run."
                )

    def _refuse_other_generation(self, fingerprint: str) -> None:
        """Raises UsageError if a state belongs to another generation of the dataset."""
        if self._mixture is not None:
            return
        # Other sources than a TokenDataset may not have generations.
        find: Callable[[str], int | None] = getattr(self.source, "generation_of", lambda _: None)
        other = None if fingerprint == self.source.fingerprint else find(fingerprint)
        if other is not None:
            raise UsageError(
                f"the state belongs to generation {other} of the dataset, and this is another "
                f"one. Open the dataset with generation={other} to go on."
            )


def check_position(state: SavedState) -> None:
    """Raises UsageError unless the batches in a state lead to its position.

    A mixture may have ended, with a partial batch, where it does not end any more.
    """
    sizes = Ramp.from_saved("batch_size in the state", state.batch_size)
    length = state.epochs and state.samples and state.epochs * state.samples
    here, since = state.position, Position(*state.since)
    steps = Steps(sizes, length, length is not None, state.drop_last, since)
    last = steps.at(here.step - 1) if here.step > since.step else None
    full = since if last is None else steps.advance(last, 1)
    reached = [full] if steps.size(full) else [full, steps.next_pass(full)]
    if last and state.samples is None and last.consumed < here.consumed < full.consumed:
        reached.append(replace(full, consumed=here.consumed))
    possible = since.step <= since.consumed <= since.step * MOST_SAMPLES
    if here not in reached or since.begin > since.consumed or not possible:
        words = ", ".join(f"{name} {number:,}" for name, number in asdict(here).items())
        raise UsageError(
            f"the state says {words}, but its batches of {state.batch_size} samples do not lead "
            "there. It was changed after it was saved: pass what state_dict() returned."
        )


def position_in(state: SavedState, steps: Steps, epochs: int | None) -> Position:
    """The position in a state, in a pass of a loader with these steps and epochs."""
    here = state.position
    if steps.length is None or not steps.repeats:
        return replace(here, begin=0)
    taken = here.consumed - here.begin
    if taken > steps.length or state.epochs != epochs:
        # Saved with other epochs: the pass of this loader that the position is in.
        return replace(here, begin=here.consumed - taken % steps.length)
    return here
