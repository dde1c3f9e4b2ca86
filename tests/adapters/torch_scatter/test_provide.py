"""torch_scatter where it is not installed: importable on request, and gone again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gnn_backend
from gnn_backend import standins
from gnn_backend.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[3]

#: A torch_scatter that is installed anyhow is hidden from the child.
HIDE = """
import sys, warnings
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch_scatter":
            raise ImportError(REASON, name=name)
sys.meta_path.insert(0, Hide())
warnings.simplefilter("error")
warnings.filterwarnings("always", message="gnn_backend stands in")
import gnn_backend
"""


def child(
    code: str, reason: str = "No module named 'torch_scatter'"
) -> subprocess.CompletedProcess:
    """Run code in a process of its own, without torch_scatter."""
    done = subprocess.run(
        [sys.executable, "-c", f"REASON = {reason!r}\n{HIDE}\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_functions_under_the_librarys_name() -> None:
    done = child("""
gnn_backend.enable(provide="torch_scatter")
import torch, torch_scatter, importlib.util
from torch_scatter import scatter, scatter_max, segment_csr
from torch_scatter.composite import scatter_softmax
from torch_scatter.scatter import scatter_add
import torch_scatter.segment_coo, torch_scatter.utils
assert torch_scatter.__gnn_backend__ and torch_scatter.__version__.startswith("2.1.2+")
assert importlib.util.find_spec("torch_scatter") is not None
index = torch.tensor([1, 0, 1])
assert scatter(torch.ones(3), index).tolist() == [1, 2]
assert callable(torch_scatter.scatter) and torch_scatter.scatter_softmax is scatter_softmax
assert torch_scatter.utils.broadcast(index, torch.ones(2, 3), -1).tolist() == [[1, 0, 1]] * 2
rows = [r for r in gnn_backend.patches() if r.host == "torch_scatter"]
assert rows and not any(r.active for r in rows) and rows[0].note == "stands in for it already"
try:
    import torch_scatter.placeholder
except ImportError:
    print("no more than there is")
gnn_backend.disable()
assert scatter(torch.ones(3), index).tolist() == [1, 2], "who imported it keeps it"
try:
    import torch_scatter
except ImportError as error:
    print("gone:", error)
assert not [name for name in sys.modules if name.startswith("torch_scatter")]
""")
    assert "no more than there is" in done.stdout and "gone: No module named" in done.stdout
    assert done.stderr.count("gnn_backend stands in for torch_scatter") == 1
    assert "ImportError: No module named 'torch_scatter'" in done.stderr


SCRIPTED = """
import torch
from torch_scatter import scatter, scatter_max, segment_csr


@torch.jit.script
def scripted(x: torch.Tensor, index: torch.Tensor, ptr: torch.Tensor, op: str):
    return (
        scatter(x, index, 0, None, 3, op), scatter_max(x, index, dim=0)[1],
        segment_csr(x, ptr, reduce=op),
    )
"""


def test_scripted_code_calls_them(tmp_path: Path) -> None:
    """As torch_sparse's classes do."""
    (tmp_path / "user.py").write_text(SCRIPTED)  # TorchScript wants a file to read
    child(f"""
warnings.simplefilter("ignore")
sys.path.insert(0, {str(tmp_path)!r})
gnn_backend.enable(provide="torch_scatter")
import torch, user
index, ptr = torch.tensor([1, 0, 1]), torch.tensor([0, 2, 3])
total, where, parts = user.scripted(torch.arange(3.0), index, ptr, "sum")
assert total.tolist() == [1, 2, 0] and where.tolist() == [1, 2] and parts.tolist() == [1, 2]
""")


@pytest.mark.thorough
def test_not_without_being_asked() -> None:
    child("""
gnn_backend.enable()
try:
    import torch_scatter
except ImportError:
    pass
else:
    raise AssertionError("provided unasked")
assert "torch_scatter" not in sys.modules
""")


def test_scopes_put_back_what_was_there() -> None:
    done = child("""
def there():
    return "torch_scatter" in sys.modules
with gnn_backend.enabled(provide=["torch_scatter"]):
    assert there()
    with gnn_backend.disabled():
        assert not there()
    assert there()
    gnn_backend.enable()
    assert not there()
assert not there()
gnn_backend.enable(provide="torch_scatter")
from gnn_backend.patching import State, registry
with registry.scope(State("auto", registry.select())):
    assert there(), "explain and compare leave it as it is"
assert there()
gnn_backend.disable()
sys.modules["torch_scatter"] = None
gnn_backend.enable(provide="torch_scatter")
import torch_scatter
gnn_backend.disable()
assert sys.modules["torch_scatter"] is None
gnn_backend.enable(provide="torch_scatter")
mine = sys.modules["torch_scatter"] = type(sys)("torch_scatter")
gnn_backend.disable()
assert sys.modules["torch_scatter"] is mine, "what other code put there stays"
""")
    assert done.stderr.count("stands in") == 1, "announced once"


@pytest.mark.thorough
def test_a_library_that_does_not_load_is_replaced() -> None:
    done = child(
        'gnn_backend.enable(provide="torch_scatter"); import torch_scatter',
        reason="undefined symbol: _ZN5torch",
    )
    assert "undefined symbol: _ZN5torch" in done.stderr


@pytest.mark.slow
def test_pyg_finds_it() -> None:
    pytest.importorskip("torch_geometric")
    child("""
warnings.simplefilter("default")
gnn_backend.enable(provide="torch_scatter", hosts="torch_scatter")
import torch, torch_geometric, torch_geometric.typing
from torch_geometric.utils import scatter, segment, softmax
from torch_geometric.utils._scatter import scatter_argmax
from torch_geometric.nn import MaxAggregation, SAGEConv
assert torch_geometric.typing.WITH_TORCH_SCATTER
assert torch_geometric.typing.torch_scatter is sys.modules["torch_scatter"]
calls = []
import torch_scatter
real = torch_scatter.segment_csr
torch_scatter.segment_csr = lambda *a, **k: calls.append("segment_csr") or real(*a, **k)
x, ptr = torch.randn(2, 6, 3), torch.tensor([[0, 2, 2, 6]])
assert torch.allclose(segment(x, ptr, "sum")[:, 0], x[:, :2].sum(1))
assert calls == ["segment_csr"], "looked up by attribute at each call"
index = torch.tensor([1, 0, 1, 2, 0, 2])
assert scatter_argmax(torch.tensor([1., 5, 3, 2, 4, 6]), index).tolist() == [1, 2, 5]
softmax(x[0], ptr=ptr[0], dim=0)
y = MaxAggregation()(x[0], ptr=ptr[0])
assert torch.equal(y[0], x[0, :2].max(0).values) and y[1].eq(0).all()
edges = torch.randint(5, (2, 20))
for aggr in ("mean", "max"):
    SAGEConv(4, 2, aggr=aggr)(torch.randn(5, 4), edges).sum().backward()
""")


@pytest.mark.thorough
def test_too_late_for_pyg_is_said() -> None:
    pytest.importorskip("torch_geometric")
    done = child("""
warnings.simplefilter("ignore")
import torch_geometric
warnings.filterwarnings("always", message="gnn_backend stands in")
gnn_backend.enable(provide="torch_scatter", hosts=[])
""")
    assert "PyG was imported before" in done.stderr


def test_names_that_nothing_stands_in_for() -> None:
    with pytest.raises(InvalidArgument, match=r"provide: .*'torch_sparse'.*torch_scatter"):
        gnn_backend.enable(provide="torch_sparse")
    assert not gnn_backend.is_enabled()
    assert standins.prepare(None) == frozenset()
