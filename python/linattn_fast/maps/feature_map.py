"""What every built-in map is: a value that turns rows (m, d) into rows (m, D)."""

from __future__ import annotations

from ..arrays.device import module_of
from ..arrays.floats import as_floats
from ..arrays.types import Array, Floats


class FeatureMap:
    """A map of tokens, each by itself; the base of all that are built in.

    Its result is float64, in the library that the block is in (numpy or CuPy), and has the same
    bits in whichever block a row is.
    """

    name: str
    """What it is called in :mod:`linattn_fast.maps`, and in files."""

    def __call__(self, block: object) -> Floats:
        """Map rows.

        Parameters
        ----------
        block
            Rows, (m, d).

        Returns
        -------
        array
            Mapped rows, (m, D).
        """
        x: Array = as_floats(block, "block")
        if x.ndim != 2 or x.shape[1] == 0:
            raise ValueError(f"block: rows (m, d) are needed, got shape {x.shape}")
        self.width(x.shape[1])  # raises where the map is for another d
        return self.of_rows(x.astype("float64", copy=False))

    def of_rows(self, x: Floats) -> Floats:
        """Map checked rows, (m, d), to (m, D)."""
        raise NotImplementedError

    def width(self, d: int) -> int:
        """Number of coordinates D of a mapped token.

        Parameters
        ----------
        d
            Number of coordinates of a token.

        Returns
        -------
        int
            D.
        """
        raise NotImplementedError

    def constant(self, width: int) -> int | None:
        """Which coordinate of a mapped token is always 1.

        Parameters
        ----------
        width
            Number of coordinates D of a mapped token.

        Returns
        -------
        int or None
            Its number; None where there is none.
        """
        return None

    def __repr__(self) -> str:
        return f"maps.{self.name}"


def row_products(x: Floats, W: Floats) -> Floats:
    """Products W x of each row, (m, k), for x (m, d) and W (k, d).

    A matrix product of BLAS may sum a row in another order in a block of another size; this sums
    each entry on its own.
    """
    products: Floats = module_of(x).einsum("md,kd->mk", x, W)
    return products
