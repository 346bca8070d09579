"""Large problems without a Gram: what the matrix-free solver is held to, in one run each.

    .venv/bin/python bench/scale.py [scenario ...]

Each scenario checks its answer, and its figures replace those of the same name in
bench/results/scale.json; bench/results/scale.md is the table of all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import readme
from machine import processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la
from linattn_fast import _cpu
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples
from linattn_fast.fitting.plan import Solver
from linattn_fast.solvers.conjugate_gradients.expected import expected_iterations
from linattn_fast.solvers.conjugate_gradients.iteration import conjugate_gradients
from linattn_fast.solvers.conjugate_gradients.rotations import aware_of_rotations
from linattn_fast.solvers.conjugate_gradients.whitening import whiten
from linattn_fast.system.machine import in_words

CHUNK = 4096
"""Sequences at a time: smaller chunks make numpy slower, larger ones take more memory."""
RIDGE = 1e-2


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Seconds and the result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


# ---------------------------------------------------------------------------- in-context regression


def context_features(Z: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Chunks of h = (S[k,y]) (x) x, (chunk, d (d + 1)), by einsum."""
    d = Z.shape[2] - 1
    for start in range(0, len(Z), CHUNK):
        rows = slice(start, min(start + CHUNK, len(Z)))
        z = Z[rows].astype(np.float64, copy=False)
        s = np.einsum("ntk,nt->nk", z, z[:, :, d], optimize=True)
        yield rows, np.einsum("nk,nl->nkl", s, z[:, -1, :d]).reshape(len(z), -1)


def numpy_ridge(Z: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """What people write: features in chunks, H @ H.T, np.linalg.solve."""
    p = (Z.shape[2] - 1) * Z.shape[2]
    gram, cross = np.zeros((p, p)), np.zeros(p)
    for rows, h in context_features(Z):
        H = np.ascontiguousarray(h.T)  # (p, chunk)
        gram += H @ H.T
        cross += H @ y[rows]
    gram /= len(Z)
    gram[np.diag_indices(p)] += alpha
    return np.linalg.solve(gram, cross / len(Z))


def gradient_norm(C: np.ndarray, Z: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """Of the objective, relative to that of C = 0."""
    g, g0 = -alpha * len(Z) * C, np.zeros_like(C)
    for rows, h in context_features(Z):
        g += h.T @ (y[rows] - h @ C)
        g0 += h.T @ y[rows]
    return float(np.linalg.norm(g) / np.linalg.norm(g0))


def in_context(d: int, n: int, dtype: type, floor: float, repeats: int) -> dict[str, object]:
    """Tokens to coefficients, ridge, chosen features, against numpy."""
    N = 5 * d * d
    Z, y, features = la.datasets.in_context_regression(N, n, d, dtype=dtype, seed=d)

    def ours() -> la.Fit:
        return la.fit(Z, y, features=features, alpha=RIDGE, heads=None, certify=False)

    ours()
    runs = [timed(ours) for _ in range(repeats)]
    seconds = sorted(spent for spent, _ in runs)[repeats // 2]
    fit = runs[0][1]
    assert isinstance(fit, la.Fit)
    time.sleep(1)
    theirs, C = timed(lambda: numpy_ridge(Z, y, RIDGE))
    assert isinstance(C, np.ndarray)
    difference = float(np.linalg.norm(fit.coefficients[0] - C) / np.linalg.norm(C))
    gradient = gradient_norm(fit.coefficients[0], Z, y, RIDGE)
    assert difference < 1e-9, difference
    assert gradient < 1e-10, gradient
    return {
        "what": f"in-context regression, d = {d}, context {n}, N = {N:,}, p = {d * (d + 1):,}, "
        f"alpha = {RIDGE:g}, {np.dtype(dtype).name} tokens",
        "ours": f"{seconds:.2f} s ({fit.info.solver}, {fit.info.iterations} iterations)",
        "against": f"numpy: {theirs:.1f} s",
        "ratio": theirs / seconds,
        "floor": floor,
        "check": f"differs by {difference:.1e}; gradient {gradient:.1e}, "
        f"numpy's {gradient_norm(C, Z, y, RIDGE):.1e}",
    }


# ------------------------------------------------------------------------------------ all features


def dense_32() -> dict[str, object]:
    """Tokens to coefficients by PCG, to 1e-8 and to rounding, and by our own Cholesky path."""
    rng = np.random.default_rng(0)
    d, N = 32, 40_000
    Z = rng.standard_normal((N, 8, d))
    truth = la.Heads(rng.standard_normal((2, 1, d)), rng.standard_normal((2, d, d)))
    y, C = truth(Z)[:, 0], truth.coefficients()

    def solved(solver: Solver | la.Pcg) -> tuple[float, float, la.Fit]:
        seconds, fit = timed(lambda: la.fit(Z, y, solver=solver, heads=None, certify=False))
        assert isinstance(fit, la.Fit)
        error = float(np.linalg.norm(fit.coefficients - C) / np.linalg.norm(C))
        assert error < 1e-8, error
        time.sleep(1)
        return seconds, error, fit

    seconds, error, fit = solved(la.Pcg(tol=1e-8))
    longer, full_error, full = solved("pcg")
    theirs, other_error, _ = solved("cholesky")
    return {
        "what": f"all features, d = {d}, p = {fit.info.dimension:,}, N = {N:,}, to 1e-8",
        "ours": f"{seconds:.1f} s ({fit.info.iterations} iterations); "
        f"to rounding {longer:.1f} s ({full.info.iterations})",
        "against": f"our Cholesky: {theirs:.0f} s",
        "ratio": theirs / seconds,
        "floor": 8,
        "check": f"relative error {error:.1e}, to rounding {full_error:.1e}, "
        f"Cholesky's {other_error:.1e}",
    }


_DENSE_64 = """
import time, numpy as np, linattn_fast as la
rng = np.random.default_rng(0)
d, N = 64, 160_000
Z = rng.standard_normal((N, 8, d), dtype=np.float32)
truth = la.Heads(rng.standard_normal((1, 1, d)), rng.standard_normal((1, d, d)))
y = truth(Z)[:, 0]
start = time.perf_counter()
fit = la.fit(
    Z, y, solver=la.Pcg(tol=1e-7), alpha=1e-6, heads=None, certify=False,
    memory_limit=7_000_000_000,
    progress=lambda done, total: print(done, total, flush=True) if done % 25 == 0 else None,
)
seconds = time.perf_counter() - start
C = truth.coefficients()
error = float(np.linalg.norm(fit.coefficients - C) / np.linalg.norm(C))
lines = open("/proc/self/status").read().splitlines()
peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(seconds, error, peak, fit.info.iterations, fit.info.dimension)
"""


def dense_64() -> dict[str, object]:
    """The whole process below 8 GB, tokens included."""
    outcome = subprocess.run(
        [sys.executable, "-c", _DENSE_64], capture_output=True, text=True, check=True
    )
    seconds, error, peak, iterations, p = map(float, outcome.stdout.splitlines()[-1].split())
    assert peak < 8e9, peak
    return {
        "what": f"all features, d = 64, p = {int(p):,}, N = 160,000, alpha = 1e-6, "
        "float32 tokens, to 1e-7",
        "ours": f"{seconds:.0f} s ({int(iterations)} iterations)",
        "seconds": seconds,
        "against": f"8 GB: a Gram would take {in_words(int(8 * p * p))}",
        "ratio": 8e9 / peak,
        "floor": 1,
        "check": f"differs from the planted layer by {error:.1e}; "
        f"peak of the process {in_words(int(peak))}",
    }


def iterations() -> dict[str, object]:
    """Iterations to 1e-10 for tokens of every kind."""
    rng = np.random.default_rng(0)
    spreads, told = [], []
    for d in (8, 12, 16):
        N = 4 * (d * d * (d + 1) // 2)
        Z = rng.standard_normal((N, 32, d))
        truth = la.Heads(rng.standard_normal((2, 1, d)), rng.standard_normal((2, d, d)))
        kinds = {
            "iid": Z,
            "condition 100": Z * np.logspace(0, -2, d),
            "mixed": Z @ rng.standard_normal((d, d)),
        }
        counts = []
        for tokens in kinds.values():
            samples = Samples.checked(tokens, truth(tokens)[:, 0])
            features = samples.features
            operator = get_backend("cpu").normal_operator(samples, keep=True)
            W = operator.total_weight
            whitening = whiten(operator.kronecker_factors(), W, 0.0, operator.features)
            gradient = operator.gradient(np.zeros((1, features.count))).gradient / W
            right = whitening.transpose(gradient)
            state = conjugate_gradients(operator, whitening, 0.0, right, tolerance=1e-10, limit=500)
            assert state.converged
            counts.append(state.iterations)
        spreads.append(max(counts) / min(counts))
        told.append(f"d = {d}: {', '.join(map(str, counts))}")
    return {
        "what": "iterations to 1e-10: iid, condition-100, mixed tokens, N = 4 p",
        "ours": "; ".join(told),
        "against": "each other",
        "ratio": max(spreads),
        "floor": 1.1,
        "check": "all converged",
    }


def rotations() -> dict[str, object]:
    """Iterations to 1e-9 in whitened coordinates, and in those that know rotations."""
    rng = np.random.default_rng(0)
    d = 24
    p = d * d * (d + 1) // 2
    told, shares = [], []
    for kind, n, ratio in (
        *(("Gaussian", 8, ratio) for ratio in (1.2, 2.4, 4.0, 8.0)),
        *(("Gaussian", n, 2.4) for n in (2, 4, 16, 64)),
        ("mixed", 8, 4.0),
        ("uniform", 8, 4.0),
        ("Student's t of 5", 8, 4.0),
    ):
        N = int(ratio * p)
        Z = rng.standard_normal((N, n, d))
        if kind == "mixed":
            Z = Z @ rng.standard_normal((d, d))
        elif kind == "uniform":
            Z = rng.uniform(-1, 1, Z.shape)
        elif kind != "Gaussian":
            Z = rng.standard_t(5, Z.shape)
        samples = Samples.checked(Z, rng.standard_normal(N))
        operator = get_backend("cpu").normal_operator(samples, keep=True)
        W, factors = operator.total_weight, operator.kronecker_factors()
        whitening = whiten(factors, W, 0.0, operator.features)
        aware = aware_of_rotations(operator, factors, 0.0, whitening)
        assert aware is not None
        gradient = operator.gradient(np.zeros((1, p))).gradient / W
        counts = []
        for coordinates in (whitening, aware):
            right = coordinates.transpose(gradient)
            state = conjugate_gradients(
                operator, coordinates, 0.0, right, tolerance=1e-9, limit=900
            )
            assert state.converged
            counts.append(state.iterations)
        law = expected_iterations(N, p, 1e-9)
        told.append(f"{kind}, n = {n}, N = {ratio:g} p: {counts[1]} ({counts[0]}, {law})")
        print(told[-1], flush=True)
        shares.append(counts[1] / counts[0])
    return {
        "what": f"iterations to 1e-9, d = {d}, coordinates that know rotations (without, law)",
        "ours": "; ".join(told),
        "against": "whitened coordinates",
        "ratio": max(shares),
        "floor": 1.05,
        "check": "all converged",
    }


def passes() -> dict[str, object]:
    """Flops a second of one pass, in float64 and float32, as a share of the machine's peak."""
    rng = np.random.default_rng(0)
    repeats, threads = 9, la.get_num_threads()
    told, least, differences = [], [], []
    for d, d_out, N in (
        (16, 1, 32768),
        (32, 1, 16384),
        (32, 4, 8192),
        (64, 1, 8192),
        (64, 2, 8192),
    ):
        Z = rng.standard_normal((N, 8, d), dtype=np.float32)
        samples = Samples.checked(Z, np.ascontiguousarray(Z[:, 0, :d_out]))
        operator = get_backend("cpu").normal_operator(samples, keep=True)
        C = rng.standard_normal((d_out, operator.features.count))
        flops = 4 * N * operator.features.count * d_out
        exact, rough = operator.normal(C).product, operator.narrow(C)
        assert rough is not None
        differences.append(float(np.linalg.norm(rough.product - exact) / np.linalg.norm(exact)))
        assert differences[-1] < 1e-6, differences[-1]
        peaks, wide, narrow = [], [], []
        for _ in range(repeats):  # side by side, because others may be using the machine
            peaks.append(_cpu.multiply_add_rate(threads))
            wide.append(flops / timed(lambda: operator.normal(C))[0])  # noqa: B023
            narrow.append(flops / timed(lambda: operator.narrow(C))[0])  # noqa: B023
        shares = max(wide) / max(peaks), max(narrow) / max(peaks) / 2
        told.append(f"d = {d}, d_out = {d_out}: {shares[0]:.0%} and {shares[1]:.0%}")
        print(told[-1], flush=True)
        if d >= 32:
            least.append(min(shares))
    return {
        "what": "one pass, all features, samples kept: share of the multiply-add peak in float64, "
        "and of the peak in float32",
        "ours": "; ".join(told),
        "against": f"multiply-adds: {max(peaks) / 1e9:.0f} GFlop/s, twice that in float32",
        "ratio": min(least),
        "floor": 0.75,
        "check": f"float32 differs by {max(differences):.1e} at most",
    }


SCENARIOS: dict[str, Callable[[], dict[str, object]]] = {
    "context-64": lambda: in_context(64, 128, np.float64, 15, 5),
    "context-100": lambda: in_context(100, 100, np.float32, 40, 3),
    "dense-32": dense_32,
    "dense-64": dense_64,
    "iterations": iterations,
    "rotations": rotations,
    "passes": passes,
}


def table(rows: dict[str, dict[str, object]]) -> str:
    """Markdown."""
    return markdown_table(
        "; ".join(sorted({str(row["machine"]) for row in rows.values()})) + ".",
        ["tokens to coefficients without a Gram", "ours", "against", "ratio", "answer"],
        [
            [row["what"], row["ours"], row["against"], f"{row['ratio']:.1f}x", row["check"]]
            for row in rows.values()
        ],
    )


def main() -> None:
    """Run the scenarios named, or all."""
    peak = max(_cpu.multiply_add_rate(la.get_num_threads()) for _ in range(5)) / 1e9
    machine = f"{processor()}, {la.get_num_threads()} threads"
    print(f"{machine}, numpy {np.__version__}, peak {peak:.0f} GFlop/s", flush=True)
    record = RESULTS / "scale.json"
    kept = json.loads(record.read_text()) if record.exists() else {}
    for name in sys.argv[1:] or SCENARIOS:
        row = {**SCENARIOS[name](), "machine": machine}
        kept[name] = row
        print(f"{name}: {row['ratio']:.2f} (floor {row['floor']})", row, flush=True)
        rows = {each: kept[each] for each in SCENARIOS if each in kept}
        keep(RESULTS, "scale", table(rows), rows)
        readme.show("scale.md", table(rows))


if __name__ == "__main__":
    main()
