"""Why a call runs the stock code: stable codes, each with an explanation and a remedy."""

from __future__ import annotations

from gnn_backend.errors import invalid

REASONS: dict[str, str] = {
    # Numbers
    "dtype-float64": "There is no float64 kernel on CUDA; use float32, or keep the tensors on the "
    "CPU, where float64 is fused.",
    "dtype-unsupported": "The tensors' dtype has no kernel; use float32, bfloat16 or float16.",
    "dtype-mixed": "Inputs and parameters have different dtypes; cast them to one dtype, or use "
    "torch.autocast.",
    "autocast": "torch.autocast is active, in which the host casts what it aggregates; cast the "
    "model and its inputs to 16 bits instead.",
    "head-dim": "The head dimension is outside 1..1024; split it over more heads.",
    "edge-dim": "Edge features are wider than 1024 numbers (or of no width); project them first.",
    "tensor-cores": "There is no tensor-core product for these heads; use bfloat16 or float16 (or "
    "allow tf32) and a head dimension that is a multiple of 16, at most 128.",
    "too-small": "The graph has fewer edges than GNN_BACKEND_MIN_EDGES; lower that setting.",
    "empty": "The graph or a feature tensor is empty, so there is nothing to fuse; the stock code "
    "answers.",
    "device": "The tensors are on a device that has no kernels; move them to the CPU or to CUDA.",
    "device-mixed": "Graph, features and parameters are on different devices; move them to one.",
    # Layer options
    "edge-features": "Edge features are given in a form that the fused path does not read (as "
    "values of a sparse adjacency, under torch.compile, or to a layer without edge_dim); pass "
    "edge_index [2, E] and features [E, F].",
    "edge-types": "There are so many types for so few edges that mapping every node for each type "
    "would cost more than mapping the edges, which is what the stock code does.",
    "edge-weight": "Weights multiply the attention after its softmax, which is not fused; "
    "leave edge_weight out.",
    "attention-dropout": "The probability of attention dropout is outside 0..1, or dropout is "
    "active under torch.compile, where it is not fused; call eval(), or do not compile the layer.",
    "returns-attention": "The attention weights are to be returned in the order of a sparse "
    "adjacency's values, or under torch.compile; pass edge_index [2, E], or do not ask for them.",
    "aggr-changed": "The layer's aggregation is not the one that its kernel computes; use the "
    "layer's default aggr.",
    "aggregation": "The aggregation has no kernel: a module of another kind (median, lstm, ...), "
    "with semi_grad or other clamps, or twice the same in a list; use sum, mean, max, min, mul, "
    "var, std, softmax or powermean, or a list of different ones.",
    "pre-layers": "The messages are more than one linear map of both ends, so that it cannot be "
    "split into maps of nodes; use pre_layers=1.",
    "adjacency": "The graph is a sparse adjacency, which the host itself multiplies without "
    "edge-wise tensors; pass edge_index [2, E] to run fused.",
    "flow": "flow='target_to_source' is not fused; use the default flow.",
    "decomposed": "decomposed_layers > 1 splits the features; use decomposed_layers=1.",
    "fill-value": "This fill_value for self-loop edge features is not fused.",
    "node-dim": "node_dim is not -2, so nodes do not lie along the rows; use the default.",
    "input-form": "The inputs have a form that the fused path does not read; pass tensors, or a "
    "pair of tensors.",
    # Customised layers
    "overridden-message": "A subclass overrides a step that the kernel replaces (message, "
    "aggregate, update, propagate or edge_update); the fused path would skip it.",
    "overridden-forward": "The layer's own forward replaces the stock one; enable() still reaches "
    "the stock forward where it is called with super().",
    "subclass": "The layer is a subclass whose changes the fused path cannot honour; use the "
    "stock class.",
    "parametrized": "A parameter or submodule was replaced by one of another kind.",
    "explain-on": "The layer is in explanation mode, which needs the message of each edge; leave "
    "explanation mode to accelerate it.",
    "hooks": "Hooks on propagate, message, aggregate or edge_update want the edge-wise values; "
    "remove them to accelerate the layer.",
    # Wrappers over relations, whose layers then run one relation at a time
    "relation-modules": "A relation has a layer that has no path for several relations at once; "
    "each relation's layer runs by itself, accelerated where it can be.",
    "relation-arguments": "Arguments beside features and edges are given for some relations; each "
    "relation's layer gets its own by itself.",
    "lazy": "A relation's layer finds the width of its input at this, its first call; later calls "
    "run for several relations at once.",
    "feature-dropout": "Dropout of features is active, which draws for one relation after the "
    "other; drop features before the wrapper.",
    "relation-dropout": "Attention dropout draws for all relations at once, which mode 'verify' "
    "cannot compare with draws for one after the other; call eval(), or use another mode.",
    "zero-in-degree": "A relation's layer refuses destinations without in-edges, which it looks "
    "for by itself; use set_allow_zero_in_degree(True).",
    # Hosts and graphs
    "graph-type": "The graph is given in a form that the fused path does not read; pass a "
    "DGLGraph, or an edge_index tensor, for example.",
    "dgl-restricted-format": "The graph's sparse formats are restricted, so its CSR may not be "
    "built; create it without .formats(...).",
    "dgl-no-cuda": "The graph is on CUDA in a way that is not known here (another build or version "
    "of DGL); install dgl==2.1.0, whose graphs g.to('cuda') makes resident.",
    "no-cupy": "CuPy is not installed, so CUDA kernels cannot be loaded; install "
    "gnn_backend[cuda12] or gnn_backend[cuda13].",
    "no-compiler": "There is no C++ compiler on the PATH, which the emulator needs; install g++.",
    "arch-unsupported": "There are no kernels for this GPU's architecture; use a GPU of compute "
    "capability 8.0 or newer.",
    "no-numba": "Numba cannot be imported, so there are no CPU kernels; install numba and tbb.",
    "cpu-operators": "The sparse operators have kernels for CUDA alone; on CPU tensors the "
    "host's own operators answer.",
    "cpu-sums": "Sums and means without edge weights take the host's own operators on CPU tensors, "
    "which are no slower there than the kernels; on CUDA they are fused.",
    "no-operators": "The layer called none of its host's sparse operators, so there was nothing "
    "for kernels to do; the framework's dense operations ran on the device as they are.",
    "no-kernel": "This layer has no fused path yet; it runs the stock code.",
    "compiled": "torch.compile does not fuse this layer (of PyG's it fuses GATv2Conv "
    "alone); leave the layer out with torch.compiler.disable, and it runs fused.",
    # Modes of execution
    "disabled": "Acceleration is off; call gnn_backend.enable().",
    "double-backward": "A gradient of a gradient is asked for, which the kernels do not compute; "
    "use the stock layer under gnn_backend.disabled().",
    "grad-mode": "A gradient is wanted for something that the kernel treats as a constant.",
    "transforms": "A torch.func transform (vmap, jvp, functional grad) is active; the kernels have "
    "no batching or forward-mode rule.",
    "scripted": "The layer runs under TorchScript, which compiles the stock code.",
    "compile-failed": "A kernel did not compile; see the warning for the compiler's log, and run "
    "`python -m gnn_backend doctor`.",
    "not-called": "The sample call did not reach this layer.",
}


def explain(code: str) -> str:
    """Return the explanation of a reason code, with its remedy.

    Raises
    ------
    InvalidArgument
        If `code` is not registered.
    """
    if code not in REASONS:
        raise invalid("reason", "unknown code", repr(code), f"one of {', '.join(sorted(REASONS))}")
    return REASONS[code]


def register(code: str, explanation: str) -> None:
    """Add a reason code, for an adapter kept outside this package.

    Raises
    ------
    InvalidArgument
        If `code` is already registered with another explanation.
    """
    if REASONS.setdefault(code, explanation) != explanation:
        raise invalid("code", "already registered", repr(code), "a new code", "Choose another.")
