"""The command line, ``linattn-fast``: ``program.py`` puts the modules of ``commands/`` together.

At this level lies what commands share: options, files of data, the bar, JSON, and the comparison
with numpy; ``report/`` has what is said of certificates and layers. The command line may use every
room of the package, and no room uses it. A new command is a module with a
:class:`~linattn_fast.cli.command.Command` in it, and one entry in ``program.COMMANDS``.
"""
