"""The paper's figures: their files, what they say, and the models they train."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.cli.program import main
from linattn_fast.paper import fig1, fig2, fig3, random_attention
from linattn_fast.paper.figure import Finding, Settings, write
from linattn_fast.paper.kept import kept
from linattn_fast.paper.registry import BY_NAME, FIGURES
from linattn_fast.system.packages import NAME

pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")

TINY = random_attention.Sizes((2, 3), 32, 16, (1, 2), (2,), (0.01, 0.001), (8, 16), 2, 3, 2, 1)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="models are trained by PyTorch, an optional extra")


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(fig2.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def small_fig2(monkeypatch):
    """Two keys and values, 40 features, and fewer samples."""
    monkeypatch.setattr(fig2, "_D", 2)
    monkeypatch.setattr(fig2, "_SAMPLES", 600)
    monkeypatch.setattr(fig2, "_QUICK", fig2._Sizes((0.5, 0.7, 0.85), 4, (1, 2), 2048, 1, 3))


def run(capsys, *argv):
    capsys.readouterr()
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def is_picture(path):
    return Path(path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# ------------------------------------------------------------------ the command


def test_every_figure_has_a_name_of_its_own_and_words():
    assert len(BY_NAME) == len(FIGURES)
    for figure in FIGURES:
        assert figure.title
        assert figure.description


def test_figure_2a_needs_no_torch_and_says_what_is_left_out(capsys, tmp_path, small_fig2, no_torch):
    code, out, err = run(
        capsys, "paper", "fig2", "--quick", "-o", tmp_path / "new" / "folder", "--threads", 1
    )
    assert (code, err) == (0, "")
    folder = tmp_path / "new" / "folder"
    assert "pip install 'linattn-fast[paper]'" in out
    assert (folder / "fig2.txt").read_text() in out.replace("\n\nwrote", "\nwrote")
    assert is_picture(folder / "fig2.png")
    rows = rows_of(folder / "fig2.csv")
    noisy = [row for row in rows if float(row["noise"])]
    assert {row["verdict"] for row in noisy} == {"identifiable"}
    means = [
        [np.mean([float(row[name]) for row in noisy if row["orthonormal"] == mixture])
         for name in ("lambda_min", "distance")]
        for mixture in ("0.5", "0.7", "0.85")
    ]  # fmt: skip
    lambdas, distances = zip(*means, strict=True)
    assert list(lambdas) == sorted(lambdas, reverse=True)
    assert list(distances) == sorted(distances)
    # The mean of squares is what theory says; 12 data sets with a few directions that matter each
    ratio = np.mean([(float(r["distance"]) / float(r["expected_distance"])) ** 2 for r in noisy])
    assert 0.5 < ratio < 2
    (alone,) = [row for row in rows if not float(row["noise"])]
    assert alone["verdict"] == "not identifiable"
    # The truth has no part in what orthonormal tables never have: it is the fit of least norm
    assert float(alone["distance"]) < 1e-12
    assert int(alone["rank"]) < int(alone["dimension"])


def test_figure_2_twice_with_the_same_seed_is_the_same(capsys, tmp_path, small_fig2, no_torch):
    found = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        code, out, _ = run(
            capsys,
            "paper",
            "fig2",
            "--quick",
            "-o",
            tmp_path / folder,
            "--seed",
            seed,
            "--threads",
            1,
            "--json",
        )
        assert code == 0
        assert json.loads(out)["seed"] == seed
        found.append((tmp_path / folder / "fig2.csv").read_text())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["fig1", "fig3"])
def test_without_torch_the_others_say_in_one_sentence_what_to_install(
    capsys, tmp_path, no_torch, name
):
    code, out, err = run(capsys, "paper", name, "--quick", "-o", tmp_path / "none")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "pip install 'linattn-fast[paper]'" in err
    assert not (tmp_path / "none").exists()


def test_without_matplotlib_nothing_is_begun(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run(capsys, "paper", "fig2", "-o", tmp_path / "none")
    assert (code, out) == (1, "")
    assert err == (
        "linattn-fast: linattn-fast paper needs the package matplotlib, which is not installed "
        f"(pip install '{NAME}[plot]')\n"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "words", [["fig9"], [], ["fig2", "--seed", "-1"], ["fig2", "--threads", "0"]]
)
def test_wrong_usage(capsys, words):
    code, out, err = run(capsys, "paper", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_a_table_has_every_column_and_a_picture_is_whole_or_not_there(tmp_path):
    rows = [{"a": 1, "b": 0.1}, {"a": 2, "c": "x"}]
    write(Finding(rows, "text", lambda figure: figure.subplots()), tmp_path, "name")
    assert (tmp_path / "name.csv").read_text() == "a,b,c\n1,0.1,\n2,,x\n"
    assert (tmp_path / "name.txt").read_text() == "text\n"
    before = (tmp_path / "name.png").read_bytes()

    def broken(figure):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write(Finding(rows[:1], "other", broken), tmp_path, "name")
    assert (tmp_path / "name.png").read_bytes() == before
    assert (tmp_path / "name.txt").read_text() == "text\n"
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".csv", ".txt"}


# ------------------------------------------------------------------ who imports the figures


def test_no_other_command_imports_the_figures():
    """Not even their options: those of a command are listed when it is asked for."""
    code = """
import sys
from linattn_fast.cli.program import main
assert main(["info", "--json"]) == 0
seen = [name for name in sys.modules if name.startswith("linattn_fast.paper")]
assert not seen, seen
assert main(["paper", "--help"]) == 0
assert "linattn_fast.paper.registry" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_one_module_of_the_package_imports_the_figures():
    grimp = pytest.importorskip("grimp", reason="comes with import-linter, of the dev extra")
    graph = grimp.build_graph("linattn_fast", exclude_type_checking_imports=True, cache_dir=None)
    room = "linattn_fast.paper"
    inside = {room, *graph.find_descendants(room)}
    importers = {name for each in inside for name in graph.find_modules_that_directly_import(each)}
    assert importers - inside == {"linattn_fast.cli.commands.paper"}


# ------------------------------------------------------------------ parts that are kept


def test_a_part_is_made_once_unless_its_setting_changes_or_its_file_is_damaged(tmp_path):
    settings, made = Settings(folder=tmp_path), []

    def make():
        made.append(len(made))
        return {"x": made[-1]}

    assert kept(settings, "part", {"n": 1}, make) == {"x": 0}
    assert kept(settings, "part", {"n": 1}, make) == {"x": 0}
    assert kept(settings, "part", {"n": 2}, make) == {"x": 1}
    (tmp_path / "paper-runs" / "part.json").write_text('{"setting": {"n"')
    assert kept(settings, "part", {"n": 2}, make) == {"x": 2}
    assert kept(Settings(), "part", {"n": 2}, make) == {"x": 3}  # nowhere to keep it


def test_an_interrupted_run_goes_on_where_it_was(torch, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop_at(epoch):
        def report(done, total):
            assert done <= total
            if done == epoch:
                raise Stop

        return report

    tiny = replace(TINY, dimensions=(2,), layers=())
    with pytest.raises(Stop):  # which only the report above raises
        random_attention.run(tiny, Settings(folder=tmp_path, progress=stop_at(5)))
    finished = sorted((tmp_path / "paper-runs").iterdir())
    assert len(finished) == 1  # of three epochs; the next one was half done
    seen = []
    settings = Settings(folder=tmp_path, progress=lambda done, total: seen.append(done / total))
    resumed = random_attention.run(tiny, settings)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    alone = random_attention.run(tiny, Settings())
    for a, b in zip(resumed.curves, alone.curves, strict=True):
        assert (a.d, a.model, a.batch, a.rate) == (b.d, b.model, b.batch, b.rate)
        np.testing.assert_array_equal(a.losses, b.losses)


# ------------------------------------------------------------------ figures 1 and 3


def made_up_experiment():
    """Curves that fall, and a convex solution below them, of two dimensions: nothing is trained."""
    rng = np.random.default_rng(0)
    curves = [
        random_attention.Curve(
            d, model, batch, rate, 10.0 ** -np.arange(1, 4) * rng.uniform(1, 2, (2, 3)), 0.25
        )
        for d in TINY.dimensions
        for model in ("1 head", "2 layers")
        for batch in TINY.batches
        for rate in TINY.rates
    ]
    convex = [
        random_attention.Convex(d, 1e-30, 1e-15, 0.01, 0.02, 1, 8, 0.01, "identifiable", 0.1, 2.0)
        for d in TINY.dimensions
    ]
    return random_attention.Experiment(TINY, tuple(curves), tuple(convex))


def test_figures_1_and_3_are_two_pictures_of_one_table(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.2+cpu"))
    for figure in (fig1, fig3):
        monkeypatch.setattr(figure, "run", lambda sizes, settings: made_up_experiment())
    tables = []
    for name in ("fig1", "fig3"):
        code, out, err = run(capsys, "paper", name, "--quick", "-o", tmp_path)
        assert (code, err) == (0, "")
        assert is_picture(tmp_path / f"{name}.png")
        assert "a row of fig1.csv" in (tmp_path / f"{name}.txt").read_text()
        assert (tmp_path / f"{name}.txt").read_text() in out.replace("\n\nwrote", "\nwrote")
        assert str(tmp_path / "fig1.csv") in out
        tables.append((tmp_path / "fig1.csv").read_bytes())
        (tmp_path / "fig1.csv").unlink()
    assert tables[0] == tables[1]
    assert tables[0].count(b"\n") == 1 + 2 + 2 * 2 * 2 * 2 * 3  # header, convex, and every epoch
    assert not (tmp_path / "fig3.csv").exists()


def test_figures_1_and_3_share_what_was_trained(torch, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(fig1, "QUICK", TINY)
    monkeypatch.setattr(fig3, "QUICK", TINY)
    code, out, err = run(capsys, "paper", "fig1", "--quick", "-o", tmp_path, "--threads", 1)
    assert (code, err) == (0, "")
    assert is_picture(tmp_path / "fig1.png")
    assert "fastest epoch" in out
    rows = rows_of(tmp_path / "fig1.csv")
    convex = [row for row in rows if row["model"] == "convex solution"]
    assert [row["d"] for row in convex] == ["2", "3"]
    assert all(float(row["loss"]) < 1e-20 for row in convex)
    assert {row["heads_found"] for row in convex} == {"1"}
    models = {"1 head", "2 heads", "2 layers", "softmax Transformer"}
    assert {row["model"] for row in rows} == {"convex solution", *models}
    monkeypatch.setattr("linattn_fast.paper.training.train", None)  # would fail if called
    code, out, err = run(capsys, "paper", "fig3", "--quick", "-o", tmp_path, "--threads", 1)
    assert (code, err) == (0, "")
    assert is_picture(tmp_path / "fig3.png")
    assert rows_of(tmp_path / "fig1.csv") == rows


def test_figure_2b_is_drawn_where_torch_is(torch, capsys, tmp_path, small_fig2):
    code, out, err = run(capsys, "paper", "fig2", "--quick", "-o", tmp_path, "--threads", 1)
    assert (code, err) == (0, "")
    trained = [row for row in rows_of(tmp_path / "fig2.csv") if row["part"] == "b"]
    assert len(trained) == 2 * 1 * 2 * 3  # mixtures, seeds, numbers of heads, epochs
    assert "AdamW" in out
    for row in trained:  # at the mixture that determines the layer, the proved bound holds
        if float(row["lambda_min"]):
            energy = 10.0  # of these targets, at most: 95 % have norm one
            bound = np.sqrt(float(row["loss"]) * energy / float(row["lambda_min"]))
            assert float(row["distance"]) < bound
    assert {bool(float(row["lambda_min"])) for row in trained} == {True, False}


# ------------------------------------------------------------------ models


def generators(torch, *seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def stacked(parameters):
    return {name: value.unsqueeze(1) for name, value in parameters.items()}  # one learning rate


@pytest.mark.parametrize(("d", "T"), [(3, 12), (5, 12)])  # d^2 below T and above it
@pytest.mark.parametrize("heads", [1, 3])
def test_linear_attention_is_that_of_heads(torch, d, T, heads):
    from linattn_fast.paper.models import LinearAttention, ManyHeads

    Z = torch.randn(2, 4, T, d, generator=torch.Generator().manual_seed(0))
    one = LinearAttention(1, heads)
    parameters = one.parameters(d, T, generators(torch, 1, 2))
    found = one.outputs(stacked(parameters), one.inputs(Z))
    assert found.shape == (2, 1, 1, 4, T)
    many = ManyHeads((heads,))
    other = many.parameters(d, T, generators(torch, 1, 2))
    same = many.outputs(stacked(other), many.inputs(Z))
    for seed in range(2):
        V, Q = (parameters[name][seed].double().numpy() for name in ("V0", "Q0"))
        layer = la.Heads(V / T, Q)
        expected = layer(Z[seed].double().numpy(), positions="causal")[..., 0]
        scale = np.abs(expected).max()
        for outputs in (found, same):
            np.testing.assert_allclose(outputs[seed, 0, 0], expected, atol=1e-5 * scale)
        C = many.coefficients(stacked(other))[seed, 0, 0].reshape(1, -1) / T
        np.testing.assert_allclose(C, layer.coefficients(), atol=1e-6)


def test_queries_of_the_last_token(torch):
    from linattn_fast.paper.models import ManyHeads

    family = ManyHeads((2, 1), d_out=3, causal=False)
    parameters = family.parameters(4, 6, generators(torch, 0))
    Z = torch.randn(1, 5, 6, 4)
    outputs = family.outputs(stacked(parameters), family.inputs(Z))
    assert outputs.shape == (1, 1, 2, 5, 3)
    for m, part in enumerate((slice(0, 2), slice(2, 3))):
        V, Q = (parameters[name][0, part].double().numpy() for name in "VQ")
        expected = la.Heads(V / 6, Q)(Z[0].double().numpy())
        np.testing.assert_allclose(outputs[0, 0, m], expected, atol=1e-5 * np.abs(expected).max())


def test_layers_follow_each_other(torch):
    from linattn_fast.paper.models import LinearAttention

    d, T = 3, 8
    family = LinearAttention(2)
    parameters = family.parameters(d, T, generators(torch, 0))
    Z = torch.randn(1, 2, T, d)
    found = family.outputs(stacked(parameters), (Z,))[0, 0, 0]
    V0, Q0, V1, Q1 = (parameters[k][0].double().numpy() for k in ("V0", "Q0", "V1", "Q1"))
    x = Z[0].double().numpy()
    x = x + la.Heads(V0 / T, Q0)(x, positions="causal")
    np.testing.assert_allclose(
        found, la.Heads(V1 / T, Q1)(x, positions="causal")[..., 0], atol=1e-5
    )


def families():
    from linattn_fast.paper.models import LinearAttention, ManyHeads, SoftmaxTransformer

    return [LinearAttention(1, 2), LinearAttention(2), ManyHeads((1, 3)), SoftmaxTransformer(8)]


@pytest.mark.parametrize("which", range(4))
def test_no_token_sees_a_later_one(torch, which):
    family = families()[which]
    parameters = stacked(family.parameters(3, 10, generators(torch, 0)))
    Z = torch.randn(1, 2, 10, 3)
    changed = Z.clone()
    changed[:, :, 6:] += 1
    before, after = (family.outputs(parameters, family.inputs(one)) for one in (Z, changed))
    np.testing.assert_array_equal(before[..., :6], after[..., :6])
    assert (before[..., 6:] != after[..., 6:]).any()


@pytest.mark.parametrize("which", range(4))
def test_models_trained_together_are_those_trained_alone(torch, which):
    from linattn_fast.paper.training import Training, train

    family = families()[which]
    rng = torch.Generator().manual_seed(0)
    Z, y = torch.randn(2, 16, 6, 3, generator=rng), torch.randn(2, 16, 6, generator=rng)
    rates = (0.01, 0.001)
    together = train(Training(family, Z, y, rates, 4, [5, 6]), 3, lambda: None)
    assert together.shape == (2, 2, len(family.labels), 3)
    for s in range(2):
        for r, rate in enumerate(rates):
            one = Training(family, Z[s : s + 1], y[s : s + 1], [rate], 4, [5 + s])
            alone = train(one, 3, lambda: None)
            np.testing.assert_allclose(together[s, r], alone[0, 0], rtol=1e-3)
    assert (np.abs(together[:, 0] - together[:, 1]) > 1e-3).any()


def test_numbers_of_heads_trained_together_are_those_trained_alone(torch):
    from linattn_fast.paper.models import LinearAttention, ManyHeads
    from linattn_fast.paper.training import Training, train

    rng = torch.Generator().manual_seed(0)
    Z, y = torch.randn(1, 16, 6, 3, generator=rng), torch.randn(1, 16, 6, generator=rng)

    def losses(family, seed):
        training = Training(family, Z, y, [0.01], 16, [seed])
        return train(training, 4, lambda: None)[0, 0]  # a batch is all of the data: no order

    together = losses(ManyHeads((2,)), 3)
    np.testing.assert_allclose(together, losses(LinearAttention(1, 2), 3), rtol=1e-4)


def test_the_loss_of_figure_2b_is_that_of_the_data(torch):
    from linattn_fast.paper.memory_training import train_memories

    data = la.datasets.associative_memory(256, 2, orthonormal=0.5, seed=0)
    losses, distances = train_memories([data], (1, 2), 2, [0], lambda: None)
    assert losses.shape == distances.shape == (1, 2, 2)
    # What AdamW reports for the epoch is about the loss before and after it
    assert (losses > 0).all()
    energy = (data.y**2).sum(1).mean()
    lambda_min = la.certify(data.Z).lambda_min
    assert (distances <= np.sqrt(losses * energy / lambda_min) * (1 + 1e-6)).all()
