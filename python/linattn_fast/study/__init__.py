"""Studies of many fits at once: ridge path, choice of a ridge, leave-one-out, and head path.

Ridges come from one factorisation and have bounds on their rounding errors; numbers of heads are
searched one after the other, from moments alone. This room uses the fit and all rooms below it.
"""
