"""Programs that one linear attention layer computes: written, compiled, learned and certified.

A token is a record of named attributes, an instruction is a lookup, and a program of lookups is a
layer. Simulators of automata and Turing machines are such programs (docs/programs.md).

    from linattn_fast import programs

    simulator = programs.TuringSimulator(n_states=2, n_symbols=2, n_cells=3)
    heads = simulator.heads()                                   # written
    fit = programs.learn(simulator, simulator.traces(400, 12))  # or learned from runs
    programs.certify(fit, simulator)                            # right for every machine and tape?
    print(simulator.execute(programs.busy_beaver(2), steps=20, heads=fit))

Rooms inside, each of which may import those before it, and every room of the package up to
``fitting``:

    running      a layer made ready, and appending its rounded outputs as tokens
    language     what a program is written in: records, lookups, contexts, programs
    machines     automata and Turing machines, and the programs that simulate them
    learning     a program from its traces, by ``linattn_fast.fit``
    certifying   is what was learned right on every run?
"""

from ..certificate.program import ProgramCertificate
from .certifying.certify import certify
from .language.family import Family
from .language.lookup import Lookup, copy, if_then
from .language.program import Program
from .language.record import Attribute, Record, signed
from .language.run import Run
from .learning import learn
from .machines.automaton import Automaton
from .machines.classic_machines import binary_increment, busy_beaver, palindrome
from .machines.dfa_simulator import DfaSimulator
from .machines.turing_machine import Computation, Configuration, TuringMachine
from .machines.turing_simulator import TuringSimulator
from .running.layer import Layer

__all__ = [
    "Attribute",
    "Automaton",
    "Computation",
    "Configuration",
    "DfaSimulator",
    "Family",
    "Layer",
    "Lookup",
    "Program",
    "ProgramCertificate",
    "Record",
    "Run",
    "TuringMachine",
    "TuringSimulator",
    "binary_increment",
    "busy_beaver",
    "certify",
    "copy",
    "if_then",
    "learn",
    "palindrome",
    "signed",
]
