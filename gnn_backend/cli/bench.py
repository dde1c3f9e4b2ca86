"""``bench``: measurements that end up in ``benchmarks/results``, and a way to read them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output, results

bench = typer.Typer(name="bench", help="Measure operators and layers.", no_args_is_help=True)

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DEFAULT_GRAPHS = {"cuda": "arxiv-like,reddit-like,products-like", "cpu": "tolokers-like"}


@bench.command()
def attention(
    graph: Annotated[
        str | None,
        typer.Option(
            help="Named graphs or npz files, comma-separated. Named: arxiv-like, reddit-like, "
            "products-like, tolokers-like, block-model, grid. Default: the first three on a GPU, "
            "else tolokers-like.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16; several with commas.")] = (
        "float32"
    ),
    operator: Annotated[str, typer.Option(help="gatv2, gat or dot.")] = "gatv2",
    variants: Annotated[
        bool, typer.Option(help="Also with dropout and with edge features, on a GPU.")
    ] = False,
    heads: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    in_dim: Annotated[int, typer.Option(min=1, help="Input width of the whole layers.")] = 128,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda if any.")] = None,
    check_yardstick: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Another yardstick: a Python file with limits(src, dst, num_src, num_dst, width, "
            "dtypes). A difference over 5 % voids the ratios.",
        ),
    ] = None,
    force_stock: Annotated[
        bool, typer.Option(help="Run stock layers even where they will not fit.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Samples; the median counts.")] = 7,
) -> None:
    """An attention operator: the yardstick, this package, stock layers and rivals in one run."""
    if device is not None:
        output.check_choice("--device", device, tuple(_DEFAULT_GRAPHS))
    dtypes = _checked_dtypes(dtype)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import attention as benchmark
    from gnn_backend.bench.attention_operators import OPERATORS
    from gnn_backend.bench.hosts import Shape

    output.check_choice("--operator", operator, tuple(OPERATORS))

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        output.fail("--device cuda: torch finds no CUDA device; use --device cpu")
    settings = benchmark.Settings(
        operator=operator,
        variants=variants,
        shape=Shape(in_dim, dim, heads),
        device=device,
        dtypes=dtypes,
        repeats=repeats,
        force_stock=force_stock,
        check_yardstick=check_yardstick,
    )
    names = _DEFAULT_GRAPHS[device] if graph is None else graph
    results.keep(benchmark.run(_listed(names), settings, output.note), json_file)


@bench.command()
def shapes(
    graph: Annotated[
        str, typer.Option(help="Named graphs or npz files, comma-separated.")
    ] = "arxiv-like",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    operator: Annotated[str, typer.Option(help="gatv2, gat, dot; several with commas.")] = (
        "gatv2,gat,dot"
    ),
    heads: Annotated[str, typer.Option(help="Head counts, with commas.")] = "1,2,4,8",
    dims: Annotated[str, typer.Option(help="Widths of a head, with commas.")] = (
        "7,16,32,33,64,127,128,256"
    ),
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Attention operators at many head counts and widths, against the yardstick, on a GPU."""
    output.check_choice("--dtype", dtype, _DTYPES[:3])
    head_counts, widths = _sizes("--heads", heads), _sizes("--dims", dims)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import shapes as benchmark
    from gnn_backend.bench.attention_operators import OPERATORS

    for name in _listed(operator):
        output.check_choice("--operator", name, tuple(OPERATORS))
    if not torch.cuda.is_available():
        output.fail("bench shapes: torch finds no CUDA device, and these kernels need one")
    settings = benchmark.Settings(
        operators=tuple(_listed(operator)), heads=head_counts, dims=widths, dtype=dtype
    )
    results.keep(benchmark.run(_listed(graph), settings, output.note), json_file)


def _sizes(option: str, text: str) -> tuple[int, ...]:
    parts = _listed(text)
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        output.fail(f"{option}: got {text!r}, expected positive numbers with commas between")
    return tuple(int(part) for part in parts)


@bench.command()
def operators(
    graph: Annotated[
        str,
        typer.Option(
            help="Named graphs or npz files, comma-separated. Named: arxiv-like, reddit-like, "
            "products-like, tolokers-like."
        ),
    ] = _DEFAULT_GRAPHS["cuda"],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16; several with commas.")] = (
        "float32"
    ),
    heads: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    check_yardstick: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another yardstick, as for `bench attention`."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Samples; the median counts.")] = 7,
) -> None:
    """The sparse operators against the yardstick and their own bytes, on a GPU."""
    dtypes = _checked_dtypes(dtype)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import operators as benchmark

    if not torch.cuda.is_available():
        output.fail("bench operators: torch finds no CUDA device, and these kernels need one")
    settings = benchmark.Settings(
        heads=heads,
        dim=dim,
        dtypes=dtypes,
        repeats=repeats,
        check_yardstick=check_yardstick,
    )
    results.keep(benchmark.run(_listed(graph), settings, output.note), json_file)


@bench.command()
def layers(
    graph: Annotated[
        str | None,
        typer.Option(
            help="Named graphs or npz files, comma-separated. Default: as for `bench attention`."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    family: Annotated[str, typer.Option(help="attention or aggregation.")] = "attention",
    host: Annotated[
        str | None, typer.Option(help="dgl, pyg; several with commas. On a GPU pyg alone.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Names with commas. Default: all of the family.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1)] = 2,
    dim: Annotated[
        int | None,
        typer.Option(min=1, help="Width of a head (64), or without heads of the result (128)."),
    ] = None,
    in_dim: Annotated[int, typer.Option(min=1, help="Input width.")] = 128,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    force_stock: Annotated[
        bool, typer.Option(help="Run stock layers even where they will not fit.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Samples, of which the median.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Fresh processes, the best counts.")] = 3,
) -> None:
    """Whole layers against stock; on the CPU each in processes of its own."""
    output.check_choice("--device", device, tuple(_DEFAULT_GRAPHS))
    results.check_file(json_file)
    from gnn_backend.bench import layers as benchmark
    from gnn_backend.bench.hosts import Shape

    output.check_choice("--family", family, tuple(benchmark.FAMILIES))
    hosts = benchmark.FAMILIES[family]
    on_gpu = device == "cuda"  # where stock DGL has no layers
    names = tuple(_listed(host or ("pyg" if on_gpu else ",".join(hosts))))
    for name in names:
        output.check_choice("--host", name, ("pyg",) if on_gpu else tuple(hosts))
    chosen = () if layer is None else tuple(_listed(layer))
    known = {form for name in names for case in hosts[name] for form in (case.layer, case.label)}
    for name in chosen:
        output.check_choice("--layer", name, tuple(sorted(known)))
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            output.fail("--device cuda: torch finds no CUDA device; use --device cpu")
    shape = Shape(in_dim, dim or (64 if family == "attention" else 128), heads)
    settings = benchmark.Settings(
        names, chosen, shape, repeats, rounds, family, device, force_stock
    )
    graphs = _DEFAULT_GRAPHS[device] if graph is None else graph
    keep = partial(results.write, json_file=json_file)
    results.keep(benchmark.run(_listed(graphs), settings, output.note, keep), json_file)


_Graphs = Annotated[
    str,
    typer.Option(
        help="Named graphs or npz files, comma-separated. Named: arxiv-like, reddit-like, "
        "products-like, tolokers-like."
    ),
]
_Json = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write results here.")]
_Widths = Annotated[str, typer.Option(help="Values a row, with commas.")]
_Dtypes = Annotated[str, typer.Option(help="float32, bfloat16, float16; several with commas.")]
_Check = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Another yardstick, as for `bench attention`.")
]
_Repeats = Annotated[int, typer.Option(min=1, help="Samples; the median counts.")]


@bench.command()
def reduce(
    graph: _Graphs = _DEFAULT_GRAPHS["cuda"],
    json_file: _Json = None,
    widths: _Widths = "64,128,256,512",
    dtype: _Dtypes = "float32",
    check_yardstick: _Check = None,
    repeats: _Repeats = 7,
) -> None:
    """Aggregation, forward and backward: the yardstick, this package and torch, on a GPU."""
    _aggregation("reduce", graph, json_file, widths, dtype, check_yardstick, repeats)


@bench.command()
def spmm(
    graph: _Graphs = _DEFAULT_GRAPHS["cuda"],
    json_file: _Json = None,
    widths: _Widths = "64,128,256,512",
    dtype: _Dtypes = "float32",
    check_yardstick: _Check = None,
    repeats: _Repeats = 7,
    paths: Annotated[
        bool,
        typer.Option(
            "--paths",
            help="Instead every path and task length of sums, extremes and several reductions, "
            "for `bench fit` and `bench regret`.",
        ),
    ] = False,
) -> None:
    """Plain and weighted sums, with gradients: the yardstick, cuSPARSE and this package."""
    if paths:
        _paths(graph, json_file, widths, dtype)
        return
    _aggregation("spmm", graph, json_file, widths, dtype, check_yardstick, repeats)


def _paths(graph: str, json_file: Path | None, widths: str, dtype: str) -> None:
    dtypes, sizes = _checked_dtypes(dtype), _sizes("--widths", widths)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import paths as benchmark

    if not torch.cuda.is_available():
        output.fail("bench spmm --paths: torch finds no CUDA device, and these kernels need one")
    results.keep(
        benchmark.run(_listed(graph), benchmark.Settings(sizes, dtypes), output.note), json_file
    )


@bench.command()
def reorder(
    graph: Annotated[
        str,
        typer.Option(
            help="Named graphs or npz files, comma-separated; `:shuffled` behind one numbers its "
            "nodes at random. Named: as for `bench attention`."
        ),
    ] = "arxiv-like,grid,grid:shuffled,block-model:shuffled,reddit-like",
    json_file: _Json = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    widths: _Widths = "64,128",
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda if any.")] = None,
    repeats: _Repeats = 7,
) -> None:
    """Orders of the rows: time to find them, and of sums, maxima and attention in each."""
    output.check_choice("--dtype", dtype, _DTYPES[:3])
    sizes = _sizes("--widths", widths)
    if device is not None:
        output.check_choice("--device", device, tuple(_DEFAULT_GRAPHS))
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import reorder as benchmark

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        output.fail("--device cuda: torch finds no CUDA device; use --device cpu")
    settings = benchmark.Settings(device=device, dtype=dtype, widths=sizes, repeats=repeats)
    results.keep(benchmark.run(_listed(graph), settings, output.note), json_file)


def _aggregation(
    family: str, graph: str, json_file: Path | None, widths: str, dtype: str,
    check_yardstick: Path | None, repeats: int,
) -> None:  # fmt: skip
    dtypes, sizes = _checked_dtypes(dtype), _sizes("--widths", widths)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import aggregation as benchmark

    if not torch.cuda.is_available():
        output.fail(f"bench {family}: torch finds no CUDA device, and these kernels need one")
    settings = benchmark.Settings(
        family=family,
        widths=sizes,
        dtypes=dtypes,
        repeats=repeats,
        check_yardstick=check_yardstick,
    )
    results.keep(benchmark.run(_listed(graph), settings, output.note), json_file)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _checked_dtypes(text: str) -> tuple[str, ...]:
    names = tuple(_listed(text))
    if any(name not in _DTYPES for name in names):
        output.fail(f"--dtype: got {text!r}, expected names among {', '.join(_DTYPES)}")
    return names


@bench.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that --json wrote.")],
) -> None:
    """Show a results file as a table."""
    document = results.read_results(file, results.BENCHMARKS)
    try:
        results.show(document)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        name = document["benchmark"]
        output.fail(f"{file} is an incomplete or damaged result of `bench {name}` ({what})")
