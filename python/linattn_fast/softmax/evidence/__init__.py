"""What speaks for a layer that was found: its errors, what the data determines, and the verdict.

``held_out`` measures errors on sequences that were kept apart, ``identifiability`` looks at the
neighbourhood of the solution, and ``named_cases`` recognises data that decides nothing.
``gathering`` collects all of it, ``verdict`` weighs it, and ``report`` is what the user reads. Of
the softmax rooms it may import all but ``learning``.
"""
