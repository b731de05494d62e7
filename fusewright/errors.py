"""Every way a command can end early, drawn as a tree.

FusewrightError              exit code
  BadUsage                   2   an argument cannot be meant: unknown name, existing output file
  UnusableProblem            2   the problem file breaks its format, or raises
    CaptureFailed            2   the model runs, but cannot be turned into a graph
  NotVerifiable              3   this machine lacks what the request needs
    ToolMissing              3   no compiler, no nvcc, no GPU
    BuildFailed              3   the compiler refused generated code
  InternalError              70  a broken promise between two stages: a bug in fusewright

A message is one paragraph and says what is wrong, where, and what to do.
"""

from __future__ import annotations


class FusewrightError(Exception):
    """Base of all errors that a user may see; `exit_code` is the process's exit status."""

    exit_code = 70


class BadUsage(FusewrightError):
    """An argument cannot be meant: unknown name, missing file, existing output file."""

    exit_code = 2


class UnusableProblem(FusewrightError):
    """The problem file breaks its format (Model, get_inputs, get_init_inputs), or raises."""

    exit_code = 2


class CaptureFailed(UnusableProblem):
    """The model runs, but `torch.export` cannot turn it into a graph."""


class NotVerifiable(FusewrightError):
    """This machine lacks what the request needs, so nothing can be said about the result."""

    exit_code = 3


class ToolMissing(NotVerifiable):
    """A compiler, a GPU or another tool that the request needs is not here."""


class BuildFailed(NotVerifiable):
    """The compiler refused generated code; the message holds its first lines."""


class InternalError(FusewrightError):
    """A broken promise between two stages: a bug in fusewright, never the user's fault."""
