"""The command line, ``linattn-fast``: one module a command, ``program.py`` puts them together.

A new command is a module with a :class:`~linattn_fast.cli.command.Command` in it, and one entry in
``program.COMMANDS``.
"""
