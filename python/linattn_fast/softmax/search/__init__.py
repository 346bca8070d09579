"""The search for the best layer: where descents start, which are made, and which of them is kept.

``settings`` checks what the user asked for; ``whitening`` and ``token_space`` are the coordinates
in which descents run and starts are drawn; ``given_start`` is a start of the user's own;
``many_starts`` runs the descents, and ``pruning`` takes heads away. Of the softmax rooms it may
import ``examples``, ``layer`` and ``descent``.
"""
