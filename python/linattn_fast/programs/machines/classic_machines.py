"""Classic Turing machines to try: increment, palindromes, busy beavers."""

from __future__ import annotations

from .turing_machine import TuringMachine


def binary_increment() -> TuringMachine:
    """Add one to a binary number; the head starts at its first digit.

    Returns
    -------
    TuringMachine
        One with 3 states, "done" included, and symbols "_", "0" and "1".

    Examples
    --------
    >>> from linattn_fast import programs
    >>> programs.binary_increment().run("1011", n_cells=5, steps=20).text
    '1100_'
    """
    return TuringMachine(
        {
            ("right", "_"): ("carry", "_", "L"),
            ("right", "0"): ("right", "0", "R"),
            ("right", "1"): ("right", "1", "R"),
            ("carry", "_"): ("done", "1", "L"),
            ("carry", "0"): ("done", "1", "L"),
            ("carry", "1"): ("carry", "0", "L"),
        },
        blank="_",
        halting=["done"],
    )


def palindrome() -> TuringMachine:
    """Decide whether a word of 0 and 1 reads the same backwards; it ends in "yes" or "no".

    It takes off the first letter, goes to the end, compares, takes off the last, and comes back. A
    blank cell on either side of the word is needed: a tape of at least the word's length + 2.

    Returns
    -------
    TuringMachine
        One with symbols "_", "0" and "1".

    Examples
    --------
    >>> from linattn_fast import programs
    >>> machine = programs.palindrome()
    >>> [machine.run(word, n_cells=8, steps=99, at=1).state for word in ("0110", "0100")]
    ['yes', 'no']
    """
    table = {("start", "_"): ("yes", "_", "R"), ("back", "_"): ("start", "_", "R")}
    for letter, other in ("01", "10"):
        table |= {
            ("start", letter): (f"have {letter}", "_", "R"),
            (f"have {letter}", "_"): (f"last {letter}", "_", "L"),
            (f"have {letter}", "0"): (f"have {letter}", "0", "R"),
            (f"have {letter}", "1"): (f"have {letter}", "1", "R"),
            (f"last {letter}", letter): ("back", "_", "L"),
            (f"last {letter}", other): ("no", other, "L"),
            (f"last {letter}", "_"): ("yes", "_", "L"),  # the letter in the middle
            ("back", letter): ("back", letter, "L"),
        }
    return TuringMachine(table, start="start", blank="_", halting=["yes", "no"])


_BEAVERS = {
    2: "1RB 1LB  1LA 1RH",
    3: "1RB 1RH  0RC 1RB  1LC 1LA",
    4: "1RB 1LB  1LA 0LC  1RH 1LD  1RD 0RA",
}


def busy_beaver(n_states: int) -> TuringMachine:
    """The machine of 2, 3 or 4 states, halting not counted, that leaves the most ones and halts.

    4 ones in 6 steps, 6 in 14, 13 in 107.

    Parameters
    ----------
    n_states
        2, 3 or 4.

    Returns
    -------
    TuringMachine
        One with symbols "0", the blank, and "1".

    Examples
    --------
    >>> from linattn_fast import programs
    >>> done = programs.busy_beaver(3).run(n_cells=9, steps=99)
    >>> len(done), done.text.count("1"), done.halted
    (14, 6, True)
    """
    if n_states not in _BEAVERS:
        raise ValueError(f"n_states: 2, 3 or 4 is needed, got {n_states!r}")
    entries = _BEAVERS[n_states].split()
    keys = [(state, symbol) for state in "ABCD"[:n_states] for symbol in "01"]
    return TuringMachine(
        {key: (entry[2], entry[0], entry[1]) for key, entry in zip(keys, entries, strict=True)},
        start="A",
        blank="0",
        halting=["H"],
    )
