"""The systems that the documents name besides QuAP-FL, and what the field adds: one file for each.

A file begins with its paper's equations and ends with the lines that register it, as CONTRIBUTING.md has it for a
program of your own. To import this package is to register them all. The library imports none of them, and its wheel has
none.
"""

from experiments.systems import acdp
from experiments.systems import d2dp
from experiments.systems import dynamic_budget
from experiments.systems import fedapca
from experiments.systems import fedbuff
from experiments.systems import feddyn
from experiments.systems import fednova
from experiments.systems import fedvarp
from experiments.systems import fl_fdms
from experiments.systems import lee_kifer
from experiments.systems import local_dp
from experiments.systems import malicious
from experiments.systems import pt_adp
from experiments.systems import robust
from experiments.systems import safari
from experiments.systems import scaffold
from quap_tff.bundle import bundle_files

__all__ = [
  'acdp',
  'd2dp',
  'dynamic_budget',
  'fedapca',
  'fedbuff',
  'feddyn',
  'fednova',
  'fedvarp',
  'fl_fdms',
  'lee_kifer',
  'local_dp',
  'malicious',
  'pt_adp',
  'robust',
  'safari',
  'scaffold',
]

# Bundles of these systems are played where this package has been imported.
bundle_files.PACKAGES.append(__name__)
