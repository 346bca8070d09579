"""Is a learned program right on every run? By a proof over all contexts, or by looking at runs.

``certify.py`` is the call. The proof, ``by_invariants.py``, stands on what can occur
(``findings.py``) and the spaces that hold every run (``invariants.py``), both in exact arithmetic
(``integer_span.py``); ``by_runs.py`` counts. Both ask ``determined.py`` which inputs the training
data determines. Any program will do: nothing here knows a machine.
"""
