"""Exceptions: what they are, and what their messages say."""

from __future__ import annotations

import pickle

import pytest

from gnn_backend import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidArgument("x"), ValueError),
        (errors.Unsupported("flow"), NotImplementedError),
        (errors.StrictFallbackError("x"), RuntimeError),
        (errors.VerificationError("x"), AssertionError),
        (errors.KernelCompileError("x"), RuntimeError),
    ],
)
def test_errors_are_ours_and_builtin(error, builtin):
    assert isinstance(error, errors.GNNBackendError) and isinstance(error, builtin)


def test_message_says_what_is_wrong_got_expected_and_to_do():
    error = errors.invalid("att", "wrong shape", (2, 3), "(2, 4)", "Transpose it.")
    assert str(error) == "att: wrong shape; got (2, 3), expected (2, 4). Transpose it."
    assert str(errors.invalid("k", "negative", -1, "a count")).endswith("expected a count.")


def test_unsupported_carries_its_reason():
    error = errors.Unsupported("head-dim", "2048 channels")
    assert (error.reason, error.detail, str(error)) == (
        "head-dim",
        "2048 channels",
        "head-dim: 2048 channels",
    )


def test_compile_error_shows_the_log():
    error = errors.KernelCompileError("no kernel", "line 1")
    assert error.log == "line 1" and str(error) == "no kernel\nline 1"


def test_errors_cross_process_boundaries():
    for error in (errors.Unsupported("flow", "x"), errors.KernelCompileError("a", "b")):
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error) and vars(copy) == vars(error)
