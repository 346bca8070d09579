"""Turing machines with names, and their computations.

A machine is a table: for each state that is not halting and each symbol, the next state, the symbol
to write, and a move, "L" or "R". Tapes are circular; with enough cells nothing notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...system.arguments import as_size
from ...system.packages import matplotlib_figure
from ...system.seeds import Seed, as_generator

_MOVES = {"L": 0, "R": 1}


class Configuration(NamedTuple):
    """State, head and tape of a machine at one time, all as numbers."""

    state: int
    """Number of its state."""
    cell: int
    """Where its head is."""
    tape: tuple[int, ...]
    """Number of the symbol in each cell."""


def _require_entries(table: Mapping[Any, Any]) -> None:
    """Raise where a table has something else than (state, symbol): (state, symbol, move)."""
    for key, action in table.items():
        if not isinstance(key, tuple) or len(key) != 2:
            raise ValueError(f"table: keys (state, symbol) are needed, got {key!r}")
        if not isinstance(action, Sequence) or len(action) != 3 or action[2] not in ("L", "R"):
            raise ValueError(
                f"table: (next state, written symbol, 'L' or 'R') is needed for {key!r}, "
                f"got {action!r}"
            )
        try:
            hash(tuple(action))
        except TypeError:
            raise TypeError(
                f"table: names that can be keys of a dictionary are needed, got {action!r}"
            ) from None


class TuringMachine:
    """A Turing machine.

    Parameters
    ----------
    table
        (state, symbol) to (next state, written symbol, move); moves are "L" and "R". States and
        symbols may be any names. Every state but the halting ones needs an entry for each symbol.
    start
        The state it starts in; the first one of the table by default.
    blank
        The symbol of cells that nothing was written to; the first one of the table by default.
    halting
        States in which it stops; text is the name of one.

    Notes
    -----
    States are numbered in the order of the table with the halting ones last, symbols with the blank
    first. ``print`` shows the table.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> machine = programs.TuringMachine(
    ...     {("even", "1"): ("odd", "_", "R"), ("odd", "1"): ("even", "_", "R"),
    ...      ("even", "_"): ("yes", "_", "L"), ("odd", "_"): ("no", "_", "L")},
    ...     blank="_", halting=["yes", "no"],
    ... )
    >>> print(machine)
    state |        _        1
    ------+------------------
     even |   _L yes   _R odd
      odd |    _L no  _R even
    starts in even, halts in yes, no, blank is _
    >>> machine.run("111", n_cells=5, steps=10).state
    'no'
    """

    def __init__(
        self,
        table: Mapping[tuple[Any, Any], tuple[Any, Any, str]],
        *,
        start: Any = None,
        blank: Any = None,
        halting: Iterable[Any] = (),
    ) -> None:
        if not isinstance(table, Mapping) or not table:
            raise ValueError(f"table: a dictionary with entries is needed, got {table!r}")
        _require_entries(table)
        if not isinstance(halting, Iterable):
            raise TypeError(f"halting: a list of states is needed, got {halting!r}")
        self.halting = (halting,) if isinstance(halting, str) else tuple(halting)
        # In the order of the keys; whatever else is written comes after these
        states = dict.fromkeys(
            [*(key[0] for key in table), *(action[0] for action in table.values())]
        )
        written = [*(key[1] for key in table), *(action[1] for action in table.values())]
        self.start_name = next(iter(states)) if start is None else start
        if self.start_name not in (*states, *self.halting):
            known = ", ".join(map(repr, states))
            raise ValueError(f"start: one of the states {known} is needed, got {start!r}")
        self.blank = written[0] if blank is None else blank
        symbols = dict.fromkeys([self.blank, *written])
        for name in self.halting:
            states.pop(name, None)
        self.states = (*states, *dict.fromkeys(self.halting))
        self.symbols = tuple(symbols)
        for state in states:
            for symbol in symbols:
                if (state, symbol) not in table:
                    raise ValueError(
                        f"table: an entry for ({state!r}, {symbol!r}) is needed, because {state!r} "
                        "is no halting state"
                    )
        number = {name: i for i, name in enumerate(self.states)}
        letter = {name: i for i, name in enumerate(self.symbols)}
        self.start = number[self.start_name]
        self.halting_numbers = frozenset(number[name] for name in self.halting)
        self.numbers: dict[tuple[int, ...], tuple[int, int, int]] = {
            (number[state], letter[symbol]): (number[after], letter[new], _MOVES[move])
            for (state, symbol), (after, new, move) in table.items()
            if state not in self.halting
        }
        """The table in numbers: (state, symbol) to (next, written, 0 for left and 1 for right)."""

    @classmethod
    def random(cls, n_states: int, n_symbols: int, seed: Seed = None) -> TuringMachine:
        """Draw a table uniformly.

        Parameters
        ----------
        n_states, n_symbols
            Numbers of states and symbols, which are numbers themselves.
        seed
            A number or numpy's generator.

        Returns
        -------
        TuringMachine
            No state halts.
        """
        Q, A = as_size(n_states, "n_states"), as_size(n_symbols, "n_symbols")
        rng = as_generator(seed)
        table = {
            (q, a): (int(rng.integers(Q)), int(rng.integers(A)), "LR"[int(rng.integers(2))])
            for q in range(Q)
            for a in range(A)
        }
        return cls(table)

    @property
    def n_states(self) -> int:
        """Number of states, halting ones included."""
        return len(self.states)

    @property
    def n_symbols(self) -> int:
        """Number of symbols."""
        return len(self.symbols)

    def tape(self, word: Sequence[object], n_cells: int, *, at: int = 0) -> tuple[int, ...]:
        """A tape with a word and blanks on it.

        Parameters
        ----------
        word
            Symbols, a string if they are letters.
        n_cells
            Cells of the tape.
        at
            Cell of the word's first symbol.

        Returns
        -------
        tuple of int
            Number of the symbol in each cell.
        """
        if not 0 <= as_size(at, "at", least=0) < as_size(n_cells, "n_cells"):
            raise ValueError(f"at: a cell from 0 to {n_cells - 1} is needed, got {at}")
        if not hasattr(word, "__len__"):
            raise TypeError(f"word: a list of symbols is needed, got {type(word).__name__}")
        if len(word) > n_cells:
            raise ValueError(f"word: at most {n_cells} symbols are needed, got {len(word)}")
        tape = [self.symbols.index(self.blank)] * n_cells
        for i, symbol in enumerate(word):
            if symbol not in self.symbols:
                known = ", ".join(map(repr, self.symbols))
                raise ValueError(f"word: symbols out of {known} are needed, got {symbol!r}")
            tape[(at + i) % n_cells] = self.symbols.index(symbol)
        return tuple(tape)

    def run(
        self, word: Sequence[object] = (), *, n_cells: int, steps: int, at: int = 0
    ) -> Computation:
        """Run it in plain Python, until it halts: what every simulation must equal.

        Parameters
        ----------
        word
            Symbols, a string if they are letters.
        n_cells
            Cells of the circular tape.
        steps
            Steps at most.
        at
            Cell of the word's first symbol, where the head starts.

        Returns
        -------
        Computation
            What it did.
        """
        tape, state, cell = list(self.tape(word, n_cells, at=at)), self.start, at
        found = [Configuration(state, cell, tuple(tape))]
        for _ in range(as_size(steps, "steps", least=0)):
            if state in self.halting_numbers:
                break
            state, tape[cell], move = self.numbers[state, tape[cell]]
            cell = (cell + (1 if move else -1)) % n_cells
            found.append(Configuration(state, cell, tuple(tape)))
        return Computation(self, tuple(found))

    def __repr__(self) -> str:
        return f"TuringMachine({self.n_states} states, {self.n_symbols} symbols)"

    def __str__(self) -> str:
        def entry(q: int, a: int) -> str:
            after, new, move = self.numbers[q, a]
            return f"{self.symbols[new]}{'LR'[move]} {self.states[after]}"

        asking = [q for q in range(self.n_states) if q not in self.halting_numbers]
        cells = [[entry(q, a) for a in range(self.n_symbols)] for q in asking]
        names = [str(symbol) for symbol in self.symbols]
        width = 2 + max(len(text) for row in [names, *cells] for text in row)
        left = max(len(name) for name in ["state", *(str(self.states[q]) for q in asking)])
        head = "".join(f"{name:>{width}}" for name in names)
        rows = [f"{'state':>{left}} |{head}", f"{'-' * left}-+{'-' * len(head)}"]
        for q, row in zip(asking, cells, strict=True):
            texts = "".join(f"{text:>{width}}" for text in row)
            rows.append(f"{self.states[q]!s:>{left}} |{texts}")
        halts = ", ".join(map(str, self.halting)) or "no state"
        rows.append(f"starts in {self.states[self.start]}, halts in {halts}, blank is {self.blank}")
        return "\n".join(rows)


@dataclass(frozen=True, eq=False)
class Computation:
    """What a machine did. ``print`` shows the tape over time, the head in brackets.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> print(programs.binary_increment().run("01", n_cells=3, steps=9))
        0 [0] 1  _   right
        1  0 [1] _   right
        2  0  1 [_]  right
        3  0 [1] _   carry
        4 [0] 0  _   carry
        5  1  0 [_]  done
    halted after 5 steps
    """

    machine: TuringMachine
    """The machine that did it."""
    configurations: tuple[Configuration, ...]
    """Before the first step and after each one."""

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.configurations) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Computation):
            return NotImplemented
        return self.configurations == other.configurations

    __hash__ = None  # type: ignore[assignment]  # compared by what they did

    @property
    def halted(self) -> bool:
        """Whether it ended in a halting state."""
        return self.configurations[-1].state in self.machine.halting_numbers

    @property
    def state(self) -> Any:
        """Name of the last state."""
        return self.machine.states[self.configurations[-1].state]

    @property
    def tape(self) -> tuple[Any, ...]:
        """Symbols on the tape at the end."""
        return tuple(self.machine.symbols[symbol] for symbol in self.configurations[-1].tape)

    @property
    def text(self) -> str:
        """The tape at the end, as text."""
        return "".join(map(str, self.tape))

    def __str__(self) -> str:
        names = [str(name) for name in self.machine.symbols]
        width = max(map(len, names))
        lines = []
        for step, (state, cell, tape) in enumerate(self.configurations):
            cells = [
                f"[{names[symbol]:>{width}}]" if i == cell else f" {names[symbol]:>{width}} "
                for i, symbol in enumerate(tape)
            ]
            lines.append(f"{step:>5} {''.join(cells)}  {self.machine.states[state]}")
        end = "halted" if self.halted else "did not halt"
        return "\n".join([*lines, f"{end} after {len(self)} steps"])

    def plot(self) -> Any:
        """Draw the tape over time, downwards, with the head's path. Needs matplotlib.

        Returns
        -------
        matplotlib.figure.Figure
            ``savefig`` writes it to a file.
        """
        cells, steps = len(self.configurations[0].tape), len(self.configurations)
        size = 2 + 0.3 * cells, 1.2 + min(8.0, 0.18 * steps)
        figure = matplotlib_figure("Computation.plot")(figsize=size, layout="constrained")
        axis = figure.subplots()
        tapes = [each.tape for each in self.configurations]
        axis.imshow(tapes, cmap="Blues", aspect="auto", interpolation="nearest", vmin=0,
                    vmax=1.5 * max(1, self.machine.n_symbols - 1))  # fmt: skip
        heads = [each.cell for each in self.configurations]
        axis.plot(heads, range(steps), ".", color="crimson", markersize=4, label="head")
        axis.set(xlabel="cell", ylabel="step")
        axis.legend(loc="upper right", fontsize="small")
        return figure
