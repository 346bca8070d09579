"""What has nothing to do with attention: the machine, progress, arguments, packages, text tables.

Cores, memory and threads that a call may use; bars and times of long work; checks of sizes and
choices, and the names of arguments in errors; optional packages. This is the lowest room: it
imports no other.
"""
