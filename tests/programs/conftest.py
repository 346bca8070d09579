"""A small simulator of automata, and what it is learned from enough traces to be right."""

import pytest

from linattn_fast import programs


@pytest.fixture(scope="module")
def automata():
    return programs.DfaSimulator(3, 2, 4)


@pytest.fixture(scope="module")
def enough(automata):
    return programs.learn(automata, automata.traces(500, 4, seed=0))
