"""Automata and Turing machines, in plain Python, and the programs that simulate them.

The machines use nothing but checks of arguments; the simulators are programs of ``language``.
Nothing here learns or certifies.
"""
