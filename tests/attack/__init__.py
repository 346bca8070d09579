"""The campaign against the package's promises: adversarial data, answered for in exact arithmetic.

``make attack`` runs it for an hour; ``tests/test_attack.py`` runs a slice of it with every test.
"""
