"""Saved states of a BatchLoader: which are one, where they are, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, fields, replace
from typing import Any

from fineshards.errors import UsageError, contrasted, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.batches import Batches
from fineshards.loader.mixing.apportionment import MAX_DRAWS
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.permutation import ALGORITHM_VERSION
from fineshards.loader.sample_sources import Source
from fineshards.loader.steps import MOST_SAMPLES, Position, Ramp, Steps

STATE_VERSION = 2
# Places of the order are computed in 64 bits.
_MOST = 1 << 61
# What states have in addition to the order.
_POSITION = ("consumed", "step", "begin", "batch_size", "epochs", "drop_last", "since")
_FLAGS = ("shuffle", "drop_last")


class States:
    """The states of one loader: what it saves, and where a saved one leads.

    Attributes:
        source: What the loader reads.
        order: What the order of samples depends on. A state can be loaded only where all of it is
            equal. These are the keys of saved states: others need another version of states.
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
            # A mixture's fingerprint covers its sources' lengths. Its own end may still change.
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

    def read(self, state: object) -> tuple[Position, Position]:
        """The position in a state, and from where the steps of the run are known.

        Raises UsageError if it belongs to another order of samples, or is no state.
        """
        state = checked_state(state, self.order)
        position = position_in(state, self._batches.steps, self._epochs)
        self._refuse_beyond_end(position)
        different = differences(state, self._order_of(position.consumed))
        if different:
            self._refuse_other_generation(state["fingerprint"])
            raise UsageError(
                f"the state belongs to another order of samples: {'; '.join(different)}. Open the "
                "same dataset with the same arguments, in the version of fineshards that saved the "
                "state, or start without it."
            )
        check_position(state)
        # That is where the loader that saved it knew them from, if it had the same settings.
        same = all(state[name] == value for name, value in self._settings().items())
        return position, _since(state) if same else position

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

    def _refuse_other_generation(self, fingerprint: object) -> None:
        """Raises UsageError if a state belongs to another generation of the dataset."""
        if self._mixture is not None:
            return
        # Other sources than a TokenDataset may not have generations.
        find: Callable[[object], int | None] = getattr(self.source, "generation_of", lambda _: None)
        found = None if fingerprint == self.source.fingerprint else find(fingerprint)
        if found is not None:
            raise UsageError(
                f"the state belongs to generation {found} of the dataset, and this is another "
                f"one. Open the dataset with generation={found} to go on."
            )


def checked_state(state: object, order: Collection[str]) -> Mapping[str, Any]:
    """A state with all keys of an order and no others; raises UsageError for anything else."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"this is not the state of a BatchLoader but {type(state).__name__}. Pass what "
            "state_dict() returned."
        )
    names = ("version", *order, *_POSITION)
    missing = [name for name in names if name not in state]
    if missing:
        raise UsageError(
            f"this is not the state of a BatchLoader: it lacks {', '.join(missing)}. "
            "Pass what state_dict() returned."
        )
    for name, value in state.items():
        if name not in names or isinstance(value, bool) != (name in _FLAGS):
            raise UsageError(
                f"this is not the state of a BatchLoader of this version: it says that {name} is "
                f"{quoted(value)}. Pass what state_dict() returned."
            )
    return state


def check_position(state: Mapping[str, Any]) -> None:
    """Raises UsageError unless the batches in a state lead to its position.

    A mixture may have ended, with a partial batch, where it does not end any more.
    """
    sizes, length = Ramp.from_saved("batch_size in the state", state["batch_size"]), None
    if state["epochs"] is not None:
        epochs = checked_integer("epochs in the state", state["epochs"], 1)
        length = state["samples"] and epochs * state["samples"]
    here, since = _saved(state), _since(state)
    steps = Steps(sizes, length, length is not None, state["drop_last"], since)
    last = steps.at(here.step - 1) if here.step > since.step else None
    full = since if last is None else steps.advance(last, 1)
    reached = [full] if steps.size(full) else [full, steps.next_pass(full)]
    if last and state["samples"] is None and last.consumed < here.consumed < full.consumed:
        reached.append(replace(full, consumed=here.consumed))
    possible = since.step <= since.consumed <= since.step * MOST_SAMPLES
    if here not in reached or since.begin > since.consumed or not possible:
        words = ", ".join(f"{name} {number:,}" for name, number in asdict(here).items())
        raise UsageError(
            f"the state says {words}, but its batches of {state['batch_size']} samples do not lead "
            "there. It was changed after it was saved: pass what state_dict() returned."
        )


def position_in(state: Mapping[str, Any], steps: Steps, epochs: int | None) -> Position:
    """The position in a state, in a pass of a loader with these steps and epochs."""
    here = _saved(state)
    if steps.length is None or not steps.repeats:
        return replace(here, begin=0)
    taken = here.consumed - here.begin
    if taken > steps.length or state["epochs"] != epochs:
        # Saved with other epochs: the pass of this loader that the position is in.
        return replace(here, begin=here.consumed - taken % steps.length)
    return here


def _saved(state: Mapping[str, Any]) -> Position:
    """The position in a state; raises UsageError for what is no number of samples or steps."""
    names = (field.name for field in fields(Position))
    numbers = (checked_integer(f"{each} in the state", state[each], 0, _MOST) for each in names)
    return Position(*numbers)


def _since(state: Mapping[str, Any]) -> Position:
    since = state["since"]
    if not isinstance(since, list | tuple) or len(since) != 3:
        raise UsageError(f"since in the state is {quoted(since)}; give three numbers.")
    return Position(*(checked_integer("since in the state", each, 0, _MOST) for each in since))


def differences(state: Mapping[str, Any], order: Mapping[str, Any]) -> list[str]:
    """What the state says of the order that a loader's order contradicts."""
    known = {"version": STATE_VERSION, **order}
    words = "is {} in the state but {} here"
    return [
        f"{name} {contrasted(state[name], here, words)}"
        for name, here in known.items()
        if state[name] != here
    ]
