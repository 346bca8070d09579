"""Results have the same bits whatever the number of threads, ours or those of BLAS.

Sizes are such that OpenBLAS would use several threads: products of a few hundred features.
"""

import functools
import importlib
import inspect
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import plant, run_python
from oracles.grouped_data import one_hot
from threadpoolctl import ThreadpoolController, threadpool_limits

import linattn_fast as la
from linattn_fast import programs
from linattn_fast.solvers import costs
from linattn_fast.system import machine

SETTINGS = [(1, 2), (2, 1), (2, 2), (4, 3)]
"""Threads of BLAS and of our own, compared with one of each."""
D, OUT = 9, 3  # 405 features


@functools.cache
def data(N=900, noise=0.1, d=D):
    rng = np.random.default_rng(8)
    Z = rng.standard_normal((N, 6, d))
    y = plant(rng, d, 2, OUT)(Z) + noise * rng.standard_normal((N, OUT))
    return Z, y


@functools.cache
def new_inputs():
    return np.random.default_rng(9).standard_normal((40, 5, D))


def facts(certificate):
    """Everything a certificate knows."""
    asked = new_inputs()[:, :, : certificate.features.d]
    return [
        *(certificate.verdict, certificate.evidence, certificate.lambda_min),
        *(certificate.lower_bound, certificate.rank),
        *certificate.covers(asked, return_residual=True),
        certificate.leverage(asked),
        certificate.null_space(3),
        certificate.explain(3),
    ]


def outcome(fit):
    seen = [fit.coefficients, fit.predict(new_inputs()), fit.info.mean_squared_error]
    if fit.heads is not None:
        seen += [fit.heads.V, fit.heads.Q]
    return seen + (facts(fit.certificate) if fit.certificate is not None else [])


def by_solver(solver, N=900, **more):
    return lambda: outcome(la.fit(*data(N), solver=solver, **({"heads": None} | more)))


def singular():
    """Tokens whose last coordinate repeats the first: not identifiable, least norm."""
    Z, y = data()
    Z = Z.copy()
    Z[:, :, -1] = Z[:, :, 0]
    fit = la.fit(Z, y, heads=None)
    return [fit.coefficients, *facts(fit.certificate)]


def in_blocks():
    rng = np.random.default_rng(3)
    Z = one_hot(rng, (2000, 6), 8)
    y = rng.standard_normal((2000, 2))
    fit = la.fit(Z, y, solver="blocks", heads=None)
    return [fit.coefficients, *facts(fit.certificate)]


def from_moments(solver):
    moments = la.Moments(D, OUT).update(*data())
    return outcome(moments.fit(alpha=1e-3, solver=solver, heads=None))


def ridges():
    Z, y = data()
    folds = [la.Moments(D, OUT).update(Z[i::3], y[i::3]) for i in range(3)]
    alphas = [0.0, 1e-3, 1.0]
    path = la.ridge_path(folds[0] + folds[1], alphas)
    chosen = la.choose_alpha(folds, alphas)
    single = la.leave_one_out(*data(500), alphas[1:])
    return [
        *(path.coefficients, path.mean_squared_errors, path.degrees_of_freedom),
        *(chosen.alpha, chosen.errors, single.alpha, single.errors),
    ]


def heads_of_every_kind():
    rng = np.random.default_rng(1)
    truth = plant(rng, 6, 5, 6)
    found = la.recover_heads(truth.coefficients(), 6)
    other = la.Heads(truth.V[::-1].copy(), truth.Q[::-1].copy())
    path = la.head_path(la.Moments(D, OUT).update(*data()), 3)
    match = la.match_heads(truth, other)
    return [
        *(
            found.V,
            found.Q,
            truth.normalized().V,
            truth.distance(other),
            match.mixing,
            match.distance,
        ),
        *[array for heads in path.heads for array in (heads.V, heads.Q)],
        path.losses,
    ]


def softmax():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((150, 4, 12))
    truth = la.softmax.Layer(
        0.3 * rng.standard_normal((3, 12, 12)), rng.standard_normal((3, 12, 4))
    )
    Y = truth(X) + 0.01 * rng.standard_normal((150, 4, 4))
    fit = la.softmax.fit(X, Y, heads=3, starts=2)
    return [fit.Theta, fit.W, str(fit.report), fit.predict(X[:5])]


def learned_program():
    simulator = programs.DfaSimulator(n_states=3, n_symbols=2, length=4)
    fit = programs.learn(simulator, simulator.traces(200, 4, seed=0))
    certificate = programs.certify(fit, simulator)
    return [fit.coefficients, fit.certificate.evidence, str(certificate)]


def streamed():
    Z, y = data()
    fit = la.fit([(Z[:500], y[:500]), (Z[500:], y[500:])], heads=None)
    return outcome(fit)


def certified():
    return [
        *facts(la.certify(data()[0], spectrum=True)),
        la.certify(data()[0], spectrum=True).spectrum,
        *facts(la.certify(data(300)[0])),
    ]


CASES = {
    "auto": by_solver("auto"),
    "cholesky": by_solver("cholesky"),
    "cholesky with a ridge": by_solver("cholesky", alpha=0.1),
    "eigh": by_solver("eigh"),
    "qr": by_solver("qr"),
    "dual": by_solver("dual", N=350),
    "pcg": by_solver("pcg"),
    "pcg, fewer samples than features": by_solver("pcg", N=300),
    "tolerance": by_solver(la.Pcg(tol=1e-6)),
    "blocks": in_blocks,
    "singular": singular,
    "moments by cholesky": functools.partial(from_moments, "cholesky"),
    "moments by eigh": functools.partial(from_moments, "eigh"),
    "minimal heads": by_solver("cholesky", heads="minimal"),
    "heads of the svd": by_solver("cholesky", heads="svd"),
    "two heads": by_solver("cholesky", heads=2),
    "numpy": by_solver("cholesky", backend="numpy"),
    "certify": certified,
    "ridges": ridges,
    "heads": heads_of_every_kind,
    "softmax": softmax,
    "programs": learned_program,
    "stream": streamed,
}


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, np.ndarray):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
        else:
            assert repr(one) == repr(other)


@pytest.fixture
def threads():
    """Sets the threads of BLAS and ours; both are as before afterwards."""
    with threadpool_limits(None, user_api="blas") as limits:

        def use(blas, own):
            limits._controller.select(user_api="blas").limit(limits=blas)
            la.set_num_threads(own)

        yield use
    la.set_num_threads(None)


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_same_bits_for_any_number_of_threads(threads, name):
    threads(1, 1)
    expected = CASES[name]()
    for blas, own in SETTINGS:
        threads(blas, own)
        before = blas_settings()
        same(CASES[name](), expected)
        assert blas_settings() == before


SCRIPT = """
import hashlib, numpy as np, linattn_fast as la
rng = np.random.default_rng(0)
Z = rng.standard_normal((700, 5, 9))
y = rng.standard_normal((700, 3))
said = hashlib.sha256()
for solver in ("cholesky", "eigh", "qr"):
    fit = la.fit(Z, y, solver=solver, heads=None)
    said.update(fit.coefficients.tobytes() + fit.certificate.leverage(Z[:50]).tobytes())
    said.update(repr((fit.certificate.lower_bound, fit.certificate.lambda_min)).encode())
print(said.hexdigest())
"""


def test_results_have_the_same_bits_whatever_the_environment_says():
    said = set()
    for blas, own in itertools.product((1, 2), (1, 3)):
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        chosen = dict.fromkeys(names, str(blas)) | {"LINATTN_NUM_THREADS": str(own)}
        ran = run_python(SCRIPT, **chosen)
        assert ran.returncode == 0, ran.stderr
        said.add(ran.stdout)
    assert len(said) == 1


# -------------------------------------------------------------------------- the setting of BLAS


def blas_settings():
    """Threads of every BLAS; of no OpenMP library, which scikit-learn brings where it is loaded."""
    found = ThreadpoolController().select(user_api="blas")
    return [library["num_threads"] for library in found.info()]


@pytest.fixture
def two_blas_threads():
    if not machine._libraries():
        pytest.skip("no BLAS whose threads can be set")
    with threadpool_limits(2, user_api="blas"):
        yield blas_settings()


def test_blas_has_one_thread_within_a_call_and_its_own_setting_afterwards(two_blas_threads):
    seen = []

    @machine.same_bits
    def inner():
        seen.append(blas_settings())

    @machine.same_bits
    def outer(fail):
        inner()
        seen.append(blas_settings())  # the inner call has ended
        if fail is not None:
            raise fail

    outer(None)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error, match="asked for"):
            outer(error("asked for"))
    assert all(set(setting) == {1} for setting in seen)
    assert len(seen) == 6
    assert blas_settings() == two_blas_threads


def test_an_error_or_interrupt_in_a_fit_leaves_the_setting_alone(two_blas_threads):
    class Stopped(BaseException):
        pass

    def stop(*_):
        assert set(blas_settings()) == {1}
        raise Stopped

    Z, y = data()
    with pytest.raises(Stopped):  # which only the callback above raises
        la.fit(Z, y, progress=stop)
    with pytest.raises(ValueError, match="^alpha"):
        la.fit(Z, y, alpha=-1)
    assert blas_settings() == two_blas_threads


def test_of_overlapping_calls_the_last_sets_blas_back(two_blas_threads):
    entered, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    @machine.same_bits
    def call(i):
        entered[i].set()
        assert leave[i].wait(60)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(call, i) for i in range(2)]
        for event in entered:
            assert event.wait(60)
        leave[0].set()
        running[0].result()
        seen = set(blas_settings())
        leave[1].set()
        running[1].result()
    assert seen == {1}
    assert blas_settings() == two_blas_threads


def test_each_thread_looks_after_a_number_of_its_own(monkeypatch):
    """As an OpenBLAS on OpenMP has it."""
    numbers = threading.local()
    each = machine._Library(
        lambda: getattr(numbers, "value", 4), lambda n: setattr(numbers, "value", n), True
    )
    monkeypatch.setattr(machine, "_libraries", lambda: [each])
    together = threading.Barrier(3)

    def call(_):
        with machine.one_blas_thread():
            together.wait(60)
            inside = each.get()
            together.wait(60)
        return inside, each.get()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(call, range(3))) == [(1, 4)] * 3


def test_fits_in_several_python_threads_have_the_same_bits(two_blas_threads):
    wanted = CASES["eigh"]()
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: CASES["eigh"](), range(6)):
            same(found, wanted)
    assert blas_settings() == two_blas_threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_forked_during_a_call_has_the_setting_before_it():
    ran = run_python(
        """
import os, warnings, linattn_fast as la
from threadpoolctl import threadpool_info, threadpool_limits
from linattn_fast.system.machine import one_blas_thread
warnings.simplefilter("ignore")  # Python warns of forking beside BLAS threads
setting = lambda: {library["num_threads"] for library in threadpool_info()}
with threadpool_limits(2, user_api="blas"):
    before = setting()
    with one_blas_thread():
        child = os.fork()
    if child == 0:
        os._exit(0 if setting() == before else 1)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert ran.returncode == 0, ran.stderr


def test_a_call_costs_microseconds(two_blas_threads):
    import timeit

    empty = machine.same_bits(lambda: None)
    assert min(timeit.repeat(empty, number=100, repeat=20)) / 100 < 50e-6


def test_a_blas_whose_threads_nobody_can_set_is_named(monkeypatch):
    def backends():
        machine.unknown_blas.cache_clear()
        return str(la.backends()[0])

    try:
        assert "BLAS" not in backends()
        monkeypatch.setattr(machine, "_libraries", list)
        assert "same bits for one setting of the threads of numpy's BLAS only" in backends()
        monkeypatch.undo()
        apple = {"Build Dependencies": {"blas": {"name": "accelerate"}}}
        monkeypatch.setattr(np, "show_config", lambda mode: apple)
        assert "numpy's accelerate" in backends()
    finally:
        machine.unknown_blas.cache_clear()


# ------------------------------------------------------------------------------ nothing forgotten

NO_ALGEBRA = {
    "backends", "convert", "estimate_memory", "get_num_threads", "load", "set_num_threads",
    # copies, files, pictures, counting; or they end in functions that are held
    "get", "put", "to_host", "save", "plot", "with_program", "to_torch", "from_torch", "expand",
    "checked", "totals_of", "holding", "add", "merged", "in_units", "uncertain_heads",
    "because", "same_choice", "mapped_by", "parts", "number_of", "for_features",
    "then", "appended", "unmapped", "has_queries", "of_streams",
    # maps, which sum each entry on its own
    "chain", "exponential", "landmarks", "width", "constant", "of_rows", "FeatureMap.__call__",
    "Chain.__call__",
    # which features and states there are, and parts of them
    "occurring", "subset", "named", "batch", "require_tokens", "of_states", "pieces", "sequence",
    "rows", "part", "every", "chosen", "kept", "mapped", "asked", "of_tokens_alone",
    "Streams.states", "coordinates", "sizes", "presence",
    # tables, records and machines of programs
    "values", "index", "random", "accepts", "context", "sample", "chunks", "match", "write",
    "written", "interpret", "encode", "decode", "require", "coordinate", "entries", "vector",
    "token", "weights", "pairs", "tape", "binary_increment", "busy_beaver", "copy", "if_then",
    "palindrome", "signed", "Automaton.run", "TuringMachine.run", "HeldOut.of",
}  # fmt: skip
"""Public callables that come near no BLAS; whatever is new has to be decorated or listed here."""


def public_callables():
    for part in ("", ".datasets", ".maps", ".softmax", ".programs"):
        module = importlib.import_module(f"linattn_fast{part}")
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                for method, given in vars(value).items():
                    function = getattr(given, "__func__", given)
                    called = not method.startswith("_") or method == "__call__"
                    if called and inspect.isfunction(function):
                        yield method, f"{name}.{method}", function
            elif inspect.isfunction(value):
                yield name, name, value


def test_every_public_function_that_computes_holds_blas():
    found = list(public_callables())
    assert len(found) > 80
    for name, whole, function in found:
        exempt = name in NO_ALGEBRA or whole in NO_ALGEBRA
        assert hasattr(function, "holds_blas") != exempt, whole


def test_the_solver_that_auto_takes_does_not_depend_on_our_threads():
    """Predicted times are those of all cores: another solver has other last bits."""
    sizes = itertools.product((8, 20, 32), (2_000, 30_000, 300_000), (1, 16), (True, False))
    for d, N, d_out, proof in sizes:
        chosen = set()
        for own in (1, 2, 64):
            la.set_num_threads(own)
            chosen.add(costs.predict(la.Features(d), d_out, "last", N, N, proof=proof))
        assert len(chosen) == 1
