"""The second moment and the loss in exact arithmetic: what bounds are held to.

Floats are integers times powers of two, so the Gram of given tokens is an integer matrix times one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def as_integers(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Integers (as Python objects) and k with values = integers / 2^k, exactly."""
    fractions = [Fraction(float(x)) for x in values.ravel()]
    k = max((f.denominator.bit_length() - 1 for f in fractions), default=0)
    integers = np.array([int(f * 2**k) for f in fractions], dtype=object)
    return integers.reshape(values.shape), k


def exact_gram(
    sequences, positions, weights, features=None
) -> tuple[np.ndarray, Fraction, Fraction]:
    """Integer matrix G (p, p), its unit, and W: sum w h h' = unit * G; h may be chosen features."""
    d = sequences[0].shape[1]
    (j, k), l = np.triu_indices(d), np.arange(d)
    if features is not None:
        (j, k), l = features.pairs.T, features.queries
    flat, token_bits = as_integers(np.concatenate(sequences))
    w, weight_bits = as_integers(np.asarray(weights, dtype=float))
    ends = np.cumsum([len(z) for z in sequences])
    G = np.zeros((len(j) * len(l),) * 2, dtype=object)
    W = 0
    for i, end in enumerate(ends):
        z = flat[end - len(sequences[i]) : end]
        queries = range(len(z)) if positions != "last" else [len(z) - 1]
        for t in queries:
            seen = z[: t + 1] if positions == "causal" else z
            S = seen.T @ seen
            h = (S[j, k][:, None] * z[t, l][None, :]).ravel()
            G = G + w[i] * np.outer(h, h)
            W += w[i]
    unit = Fraction(1, 2 ** (6 * token_bits + weight_bits))
    return G, unit, Fraction(W, 2**weight_bits)


def exact_loss(Z: np.ndarray, y: np.ndarray, C: np.ndarray) -> float:
    """(1/N) sum ||C h - y||^2 over "last" queries, rounded once, at the end."""
    d = Z.shape[2]
    pairs = [(j, k) for j in range(d) for k in range(j, d)]
    coefficients = [[Fraction(float(c)) for c in row] for row in C]
    total = Fraction(0)
    for tokens, target in zip(Z, y, strict=True):
        rows = [[Fraction(float(x)) for x in token] for token in tokens]
        s = [sum(row[j] * row[k] for row in rows) for j, k in pairs]
        h = [s_u * z_l for s_u in s for z_l in rows[-1]]
        for row, wanted in zip(coefficients, target, strict=True):
            off = sum(c * x for c, x in zip(row, h, strict=True)) - Fraction(float(wanted))
            total += off * off
    return float(total / len(Z))


def is_positive_definite(matrix: np.ndarray) -> bool:
    """Whether all leading minors of an integer matrix are positive (Bareiss elimination)."""
    a = matrix.copy()
    previous = 1
    for i in range(len(a)):
        if a[i, i] <= 0:
            return False
        below = slice(i + 1, None)
        a[below, below] = (
            a[i, i] * a[below, below] - np.outer(a[below, i], a[i, below])
        ) // previous
        previous = a[i, i]
    return True


def exceeds(gram: tuple[np.ndarray, Fraction, Fraction], bound: float) -> bool:
    """Whether lambda_min of the exact second moment is above ``bound``."""
    G, unit, W = gram
    shift = Fraction(bound) * W / unit  # G - shift I, made integer
    matrix = G * shift.denominator
    matrix[np.diag_indices(len(G))] -= shift.numerator
    return is_positive_definite(matrix)


def exact_features(sequences, positions, weights=None, features=None) -> np.ndarray:
    """Features of the samples of positive weight, times a power of two: whole numbers, (M, p)."""
    d = np.asarray(sequences[0]).shape[1]
    pairs = np.stack(np.triu_indices(d), axis=1) if features is None else features.pairs
    queries = np.arange(d) if features is None else features.queries
    flat, _ = as_integers(np.concatenate([np.asarray(z, float) for z in sequences]))
    ends = np.cumsum([len(z) for z in sequences])
    rows = []
    for i, end in enumerate(ends):
        if weights is not None and not weights[i] > 0:
            continue
        z = flat[end - len(sequences[i]) : end]
        for t in range(len(z)) if positions != "last" else [len(z) - 1]:
            seen = z[: t + 1] if positions == "causal" else z
            S = seen.T @ seen
            rows.append((S[tuple(pairs.T)][:, None] * z[t][queries][None, :]).ravel())
    return np.array(rows, dtype=object).reshape(len(rows), len(pairs) * len(queries))


def exact_rank(matrix: np.ndarray) -> int:
    """Rank of a matrix of whole numbers, by elimination without fractions (Bareiss)."""
    a = matrix.copy()
    rank, previous = 0, 1
    for column in range(a.shape[1]):
        rows = np.flatnonzero(a[rank:, column])
        if len(rows) == 0:
            continue
        a[[rank, rank + rows[0]]] = a[[rank + rows[0], rank]]
        pivot, below = a[rank, column], a[rank + 1 :]
        below[:] = (pivot * below - np.outer(below[:, column], a[rank])) // previous
        previous = pivot
        rank += 1
        if rank == len(a):
            break
    return rank


def features_as_fractions(sequences, positions, chosen) -> list[list[Fraction]]:
    """Features of every query, exactly, in their own units; ``chosen`` are (pairs, queries)."""
    pairs, queries = chosen
    rows = []
    for sequence in sequences:
        z = [[Fraction(float(x)) for x in token] for token in sequence]
        for t in range(len(z)) if positions != "last" else [len(z) - 1]:
            seen = z[: t + 1] if positions == "causal" else z
            s = [sum(token[j] * token[k] for token in seen) for j, k in pairs]
            rows.append([x * z[t][l] for x in s for l in queries])
    return rows


def exact_leverages(H, weights, queries) -> list[Fraction | None]:
    """h' Lambda^+ h of the queries, Lambda = (1/W) sum w h h'; None outside the range.

    Gauss-Jordan on Lambda x = h: a solution x exists in the range, and the leverage is x'h.
    """
    p = len(H[0])
    w = [Fraction(float(x)) for x in weights]
    W = sum(w)
    rows = []
    for a in range(p):
        left = [sum(wi * h[a] * h[b] for wi, h in zip(w, H, strict=True)) for b in range(p)]
        rows.append(left + [W * h[a] for h in queries])
    pivots = []
    for column in range(p):
        at = next((i for i in range(len(pivots), p) if rows[i][column]), None)
        if at is None:
            continue
        top = len(pivots)
        rows[top], rows[at] = rows[at], rows[top]
        pivot = rows[top][column]
        rows[top] = [x / pivot for x in rows[top]]
        for i in range(p):
            factor = rows[i][column]
            if i != top and factor:
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[top], strict=True)]
        pivots.append(column)
    found = []
    for number, h in enumerate(queries):
        place = p + number
        if any(rows[i][place] for i in range(len(pivots), p)):
            found.append(None)
        else:
            found.append(sum(h[c] * rows[i][place] for i, c in enumerate(pivots)))
    return found
