"""What is learned from: sequences with targets, checked, grouped by length, split and rescaled.

``given`` checks tokens and targets, ``units`` brings them to unit size, ``groups`` makes dense
arrays of them, and ``split`` holds some of them out. This is the lowest of the softmax rooms: it
may import no other of them.
"""
