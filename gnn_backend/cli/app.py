"""Assembles the commands into ``gnn-backend``, also ``python -m gnn_backend``."""

from __future__ import annotations

import typer

from gnn_backend.cli import output
from gnn_backend.cli.bench import bench
from gnn_backend.cli.bench_gemm import gemm
from gnn_backend.cli.bench_relational import relational
from gnn_backend.cli.bench_wrappers import wrappers
from gnn_backend.cli.cache import cache
from gnn_backend.cli.compare import compare
from gnn_backend.cli.demo import demo
from gnn_backend.cli.doctor import doctor
from gnn_backend.cli.emit import emit
from gnn_backend.cli.kernels import kernels
from gnn_backend.cli.layers import layers
from gnn_backend.cli.regret import fit, regret
from gnn_backend.cli.run import run
from gnn_backend.errors import GNNBackendError

app = typer.Typer(
    name="gnn-backend",
    help="Fused kernels behind unchanged DGL and PyTorch Geometric code.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_rest_belongs_to_the_script = {"allow_interspersed_args": False, "ignore_unknown_options": False}
app.command(context_settings=_rest_belongs_to_the_script)(run)
app.command()(demo)
app.command()(compare)
app.command()(layers)
app.command()(doctor)
app.command()(kernels)
app.command()(emit)
app.command()(cache)
bench.command()(gemm)
bench.command()(relational)
bench.command()(wrappers)
bench.command()(fit)
bench.command()(regret)
app.add_typer(bench)


def main() -> None:
    """Run the command line; errors of this package end it with a message, not a traceback."""
    try:
        app()
    except GNNBackendError as error:
        output.fail(str(error))
