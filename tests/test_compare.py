"""A layer against its stock self."""

from __future__ import annotations

import json
import random
import types

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gnn_backend
from gnn_backend import verify
from gnn_backend.compare import Sample, compare_samples
from gnn_backend.dispatch import bypassed
from gnn_backend.errors import InvalidArgument
from gnn_backend.judging import BRANCHED, differing, errors


def x(**kwargs) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(1), **kwargs)


def test_equal_layer(fake):
    result = gnn_backend.compare(fake.load().Conv(), x(), repeats=2)
    assert result.accelerated and result.reason is None and result.launches == 1
    assert list(result.max_abs_error) == ["out", "x", "lin.weight", "lin.bias"]
    assert set(result.max_rel_error.values()) == {0.0}
    assert result.ms["stock"] > 0 and result.ms["backend"] > 0
    assert not gnn_backend.is_enabled()


@pytest.mark.parametrize(
    ("fault", "name", "error"),
    [("wrong output", "out", 0.5), ("wrong gradient", "lin.bias", None), ("detached", "x", None)],
)
def test_faults_show(fake, fault, name, error):
    layer = fake.load().Conv().eval()
    fake.how["fast"] = fault
    result = gnn_backend.compare(layer, x(), repeats=1)
    worst = max(result.max_rel_error, key=result.max_rel_error.get)
    assert result.max_rel_error[name] > 1e-2 and (error is None or worst == name)
    if error:
        assert result.max_abs_error[name] == pytest.approx(error, rel=1e-5)


def test_fallback_is_told(fake):
    result = gnn_backend.compare(fake.load().Conv().double(), x().double(), repeats=1)
    assert not result.accelerated and result.reason == "dtype-float64" and result.launches == 0
    assert result.max_abs_error["out"] == 0


def test_layer_without_kernel(fake):
    result = gnn_backend.compare(fake.load().Plain(), x(), repeats=1)
    assert not result.accelerated and result.reason == "no-kernel"


def test_nothing_of_the_user_changes(fake):
    layer, feat = fake.load().Conv(), x(requires_grad=True)
    layer.lin.weight.grad = mark = torch.zeros(3, 3)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    gnn_backend.compare(layer, feat, repeats=1)
    assert torch.equal(torch.rand(2), expected)
    assert layer.lin.weight.grad is mark and not mark.any() and feat.grad is None
    assert layer.calls == 0


@pytest.mark.thorough
def test_works_inside_no_grad_and_while_enabled(fake):
    layer = fake.load().Conv()
    with torch.no_grad(), gnn_backend.enabled(mode="strict"):
        result = gnn_backend.compare(layer, x(), scale=2.0, repeats=1)
    assert result.accelerated and "lin.weight" in result.max_abs_error


def test_memory_growth_is_seen(fake):
    """The stock layer's tensors of 12 MiB shows in the peak, where the system tells it."""
    result = gnn_backend.compare(fake.load().Conv().eval(), torch.ones(1 << 20, 3), repeats=1)
    if result.peak_bytes["stock"] is None:
        pytest.skip("the resident peak cannot be read here")
    assert result.peak_bytes["stock"] > 10 << 20
    assert result.peak_bytes["backend"] > 10 << 20


def test_inputs_that_stock_cannot_take(fake):
    """Stock in float32 is the reference then, and it has no time."""
    layer = fake.load().Conv().eval().bfloat16()
    fake.conv.nn = types.SimpleNamespace(functional=types.SimpleNamespace(dropout=_refuse_16_bit))
    result = gnn_backend.compare(layer, x().bfloat16(), repeats=1)
    assert result.accelerated and result.reference == "stock in float32"
    assert result.ms["stock"] is None and result.peak_bytes["stock"] is None
    assert 0 < result.max_rel_error["out"] < 2e-2
    assert "stock in float32" in str(result)


def _refuse_16_bit(x, *args):
    if x.dtype == torch.bfloat16:
        raise RuntimeError("stock: no 16-bit")
    return F.dropout(x, *args)


@pytest.mark.thorough
def test_strict_instance_is_compared_all_the_same(fake):
    layer = gnn_backend.accelerate(fake.load().Conv().double(), mode="strict")
    assert gnn_backend.compare(layer, x().double(), repeats=1).reason == "dtype-float64"
    assert gnn_backend.explain(layer, x().double()).layers[0].reason == "dtype-float64"


def test_reports(fake):
    result = gnn_backend.compare(fake.load().Conv(), x(), repeats=1)
    assert "lin.weight" in str(result) and "accelerated" in str(result)
    data = json.loads(json.dumps(result.to_dict()))
    assert {"accelerated", "reason", "max_abs_error", "max_rel_error", "peak_bytes", "ms"} <= set(
        data
    )


def run_of(outputs, gradients):
    return verify.Run(None, outputs, gradients)


def test_a_gradient_that_cancels_is_judged_by_the_others():
    """As in mode ``verify``: rounding errors of large gradients are none of a vanishing one."""
    gradients = {"w": torch.tensor([4.0]), "b": torch.tensor([1e-7]), "c": None}
    ours = {"w": torch.tensor([4.0]), "b": torch.tensor([3e-7]), "c": None}
    outputs = {"out": torch.tensor([1.0])}
    absolute, relative, judged = errors(run_of(outputs, gradients), run_of(outputs, ours))
    assert absolute["b"] == pytest.approx(2e-7) and relative["b"] == pytest.approx(2.0)
    assert judged == {"out": 0.0, "w": 0.0, "b": pytest.approx(5e-6)}


def test_another_sample_can_be_the_reference(fake):
    """The host's own code runs it, even while acceleration is on, and it has no figures."""
    layer, other = fake.load().Conv().eval(), fake.load().Conv().eval()
    with torch.no_grad():
        other.lin.weight.copy_(layer.lin.weight + 1)
        other.lin.bias.copy_(layer.lin.bias)
    with gnn_backend.enabled(mode="strict"), gnn_backend.profile() as counted:
        found = compare_samples(Sample(layer, (x(),)), Sample(other, (x(),)), repeats=0)
    assert found.reference == "stock on the CPU" and found.max_rel_error["out"] > 0.1
    assert counted.accelerated == 1 and found.symbols == [f"{fake.name}.Conv"]
    assert found.ms == found.peak_bytes == {"stock": None, "backend": None}


class Cancelling(torch.nn.Module):
    """Adds and takes away a large number, so that float32 keeps few digits."""

    def __init__(self, terms, factor=1.0, own=None):
        super().__init__()
        self.terms, self.factor, self.own = terms, factor, own

    def forward(self, x):
        for term in self.terms:
            x = x + term
        return x * self.factor @ (torch.eye(3, dtype=self.own or x.dtype))


def test_rounding_between_devices_is_that_of_stock():
    """An error that stock has itself against float64 is no difference; a larger one is."""
    stock = Sample(Cancelling([4096, -4096]), (x(),))
    fine = compare_samples(Sample(Cancelling([]), (x(),)), stock, repeats=0)
    assert 2e-5 < fine.judged_error["out"] <= 1.1 * fine.rounding["out"] < 1e-3
    assert differing(fine.judged_error, fine.rounding, fine.own_rounding, 2e-5) == {}
    wrong = compare_samples(Sample(Cancelling([], 1.001), (x(),)), stock, repeats=0)
    assert set(differing(wrong.judged_error, wrong.rounding, wrong.own_rounding, 2e-5)) == {
        "out",
        "x",
    }
    assert wrong.rounding["x"] == 0
    equal = compare_samples(stock, stock, repeats=0)
    assert equal.rounding == {}  # not asked for


def test_a_layer_that_float64_cannot_run_is_judged_without_it():
    stock = Sample(Cancelling([4096, -4096], own=torch.float32), (x(),))
    found = compare_samples(Sample(Cancelling([]), (x(),)), stock, repeats=0)
    assert found.rounding == found.own_rounding == {}
    assert set(differing(found.judged_error, {}, {}, 2e-5)) == {"out"}


class Finer(Cancelling):
    """Loses digits as stock alone."""

    def forward(self, x):
        return super().forward(x) if bypassed() else x * self.factor @ torch.eye(3, dtype=x.dtype)


@pytest.mark.thorough
def test_on_one_device_too_float64_is_the_second_judge():
    """Stock is wrong by its own rounding; the result says how far both are from float64."""
    found = gnn_backend.compare(Finer([4096, -4096]), x(), repeats=1)
    assert found.reference == "stock" and found.judged_error["out"] > 2e-5
    assert found.own_rounding["out"] < 1e-6 < 2e-5 < found.rounding["out"]
    assert differing(found.judged_error, found.rounding, found.own_rounding, 2e-5) == {}
    assert "float64 to ours" in str(found)


def test_what_is_no_rounding():
    """Where precisions take another branch they tell nothing, and NaN is never right."""
    judged = {"a": 0.5, "b": float("nan"), "c": 3e-5, "d": 1e-5, "e": 3e-5, "f": 3e-5}
    rounding = {"a": 0.6, "b": 1e-3, "c": 1e-6, "e": 2e-5, "f": 2e-5}
    own = {"a": 0.1, "b": float("nan"), "c": 3e-5, "e": 1e-5, "f": 7e-5}
    assert set(differing(judged, rounding, own, 2e-5)) == {"a", "b", "c", "f"}
    assert set(differing(judged, rounding, own | {"c": 1e-5, "f": 5e-5}, 2e-5)) == {"a", "b"}
    assert set(differing(judged, {}, {}, 2e-5)) == set(judged) - {"d"}
    assert 1e-3 < BRANCHED[torch.float32] < 0.1


class Checkpointed(torch.nn.Module):
    """Draws from the generators of Python and NumPy, and computes a part anew in backward."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)

    def forward(self, x):
        factor = 1 + random.random() + float(np.random.rand())
        return checkpoint(self.lin, x, use_reentrant=True) * factor


def test_layers_that_compute_anew_in_backward(fake):
    layer = Checkpointed()
    layer.lin.weight.grad = mark = torch.zeros(3, 3)
    found = compare_samples(Sample(layer, (x(),), rematerializes=True), repeats=0)
    assert found.max_rel_error == dict.fromkeys(("out", "x", "lin.weight", "lin.bias"), 0.0)
    assert layer.lin.weight.grad is mark and not mark.any() and layer.lin.bias.grad is None
    with pytest.raises(RuntimeError, match="grad"):
        compare_samples(Sample(layer, (x(),)), repeats=0)


def test_generators_of_python_and_numpy_are_left_alone(fake):
    random.seed(3)
    np.random.seed(3)
    wanted = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    compare_samples(Sample(Checkpointed(), (x(),), rematerializes=True), repeats=0)
    assert (random.random(), np.random.rand()) == wanted


def test_bad_arguments(fake):
    with pytest.raises(InvalidArgument, match="function"):
        gnn_backend.compare(lambda x: x, x())
    for repeats in (0, "3", 1.5):
        with pytest.raises(InvalidArgument, match="repeats"):
            gnn_backend.compare(fake.load().Conv(), x(), repeats=repeats)
    with pytest.raises(TypeError, match="stock: wrong width"):
        gnn_backend.compare(fake.load().Conv(), torch.ones(2, 5))


@pytest.mark.usefixtures("twin_engine")
def test_attention_dropout_is_compared_on_one_mask():
    nn = pytest.importorskip("torch_geometric").nn
    edges = torch.tensor([[0, 1, 2, 2, 0], [1, 2, 0, 1, 2]])
    found = gnn_backend.compare(
        nn.GATConv(4, 3, 2, dropout=0.5), torch.randn(3, 4), edges, repeats=1
    )
    assert found.accelerated and max(found.max_rel_error.values()) < 2e-5


def test_a_layer_without_stock_is_refused():
    layer = gnn_backend.nn.GraphTransformerConv(4, 2)
    with pytest.raises(InvalidArgument, match="layer: has no stock to compare with; got Graph"):
        gnn_backend.compare(layer, torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]))
