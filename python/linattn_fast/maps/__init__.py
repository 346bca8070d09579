"""Feature maps: tokens, keys or queries made into others before a layer sees them.

    y = sum_h V_h S Q_h phi(z)        S = sum_t phi(z_t) phi(z_t)'

A map takes rows, (m, d), and returns as many, (m, D), each made of its own row alone. Any function
that does so is one. Those here are small values: they can be compared, pickled, and kept in the
files of fits. ``width(d)`` is D, and ``constant(D)`` the coordinate that is always 1, if any.

    la.fit(Z, y, map=la.maps.elu1)
    la.fit(Z, y, map=la.maps.chain(la.maps.relu, la.maps.with_constant))
"""

from .chain import Chain, chain
from .feature_map import FeatureMap
from .landmark_kernel import Landmarks, landmarks
from .pointwise import elu1, hedgehog, relu, with_constant
from .random_exponential import Exponential, exponential
from .taylor import taylor2

__all__ = [
    "Chain",
    "Exponential",
    "FeatureMap",
    "Landmarks",
    "chain",
    "elu1",
    "exponential",
    "hedgehog",
    "landmarks",
    "relu",
    "taylor2",
    "with_constant",
]
