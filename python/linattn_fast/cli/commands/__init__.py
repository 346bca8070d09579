"""The commands of ``linattn-fast``, one module each.

A command reads its options, calls the package, and returns an
:class:`~linattn_fast.cli.command.Outcome`. It may use everything in ``cli/`` and below it, but no
other command. ``paper`` is the only module of the package that imports :mod:`linattn_fast.paper`.
"""
