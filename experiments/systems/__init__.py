"""The systems that the documents name besides QuAP-FL, and what the field adds: one file for each.

A file begins with its paper's equations and ends with the lines that register it, as CONTRIBUTING.md has it for a
program of your own. To import this package is to register them all. The library knows none of them, and its wheel has
none.
"""

from experiments.systems import robust

__all__ = ['robust']
