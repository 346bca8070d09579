"""The paper's experiments, one module a figure (docs/paper.md).

A figure is a value of :class:`~linattn_fast.paper.figure.Figure`; ``registry.py`` lists them, and
``linattn-fast paper NAME`` runs one. They may use every room but ``cli``, and nothing imports them
but that command. What trains by gradient descent needs PyTorch, an optional extra, which is
imported only when a figure runs.
"""
