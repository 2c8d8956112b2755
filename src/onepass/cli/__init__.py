"""Layer 13: the command line; one module for each command or pair of commands.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done, 2 the user's
input is wrong, 3 onepass is wrong, 130 interrupted.
"""

from onepass.cli.app import main

__all__ = ["main"]
