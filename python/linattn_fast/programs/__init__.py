"""Programs that one linear attention layer computes: written, compiled, learned and certified.

A token is a record of named attributes, an instruction is a lookup, and a program of lookups is a
layer. Simulators of automata and Turing machines are such programs (docs/programs.md).

    from linattn_fast import programs

    simulator = programs.TuringSimulator(n_states=2, n_symbols=2, n_cells=3)
    heads = simulator.heads()                                   # written
    fit = programs.learn(simulator, simulator.traces(400, 12))  # or learned from runs
    programs.certify(fit, simulator)                            # right for every machine and tape?
    print(simulator.execute(programs.busy_beaver(2), steps=20, heads=fit))
"""

from ..certificate.program import ProgramCertificate
from .certifying import certify
from .classic_machines import binary_increment, busy_beaver, palindrome
from .dfa import Automaton, DfaSimulator
from .family import Family
from .layer import Layer
from .learning import learn
from .lookup import Lookup, copy, if_then
from .machine import Computation, Configuration, TuringMachine
from .program import Program, Run
from .record import Attribute, Record, signed
from .turing import TuringSimulator

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
