"""Writes the bundle of a run."""

from __future__ import annotations

import os
import platform
from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from quap_tff import plans
from quap_tff.bundle import bundle_files
from quap_tff.certificates.folders import about as abouts
from quap_tff.common import files
from quap_tff.exporting import forms
from quap_tff.mechanisms.parts import postprocessing


def export(
  plan: Optional[plans.Plan],
  process: Any,
  folder: Union[str, os.PathLike],
  *,
  rounds: Optional[bundle_files.PlannedRounds] = None,
  about: Optional[abouts.About] = None,
  model_fn: Optional[Callable[[], Any]] = None,
) -> None:
  """Writes a bundle, which `quap_tff.Bundle` plays with TensorFlow alone. It appears complete or not at all.

  Args:
    plan: The plan of the run; None for a process without an account.
    process: The `tff.learning.templates.LearningProcess`; with a plan, the one from `plan.build_process`.
    folder: The folder, which must not exist.
    rounds: What a simulation plays; by default the planned rounds.
    about: What the issuer of a certificate states.
    model_fn: Makes the model for the evaluation; by default that of the plan's process.

  Raises:
    ValueError: If the folder exists, the process is not the plan's, or it cannot be exported: with the reason.
  """
  folder = os.fspath(folder)
  if os.path.lexists(folder):
    raise ValueError(f'{folder} already exists: give a new folder.')
  if plan is not None:
    _check(plan, process)
    model_fn = plan.model_fn if model_fn is None else model_fn
    if rounds is None:
      rounds = bundle_files.PlannedRounds(plan.expected, averaging=plan.averaging or postprocessing.LastIterate())
  rounds = bundle_files.PlannedRounds() if rounds is None else rounds
  graphs = forms.export_process(process)
  evaluation = None if model_fn is None else forms.export_evaluation(model_fn)
  if evaluation is not None:
    graphs['evaluate'] = evaluation
  content = {f'{name}.pb': one.graph_def for name, one in graphs.items()}
  texts = bundle_files.texts({name: one.bindings for name, one in graphs.items()}, plan, rounds, about)
  content.update((name, text.encode()) for name, text in texts.items())
  versions = {
    'python': platform.python_version(),
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
  }
  with files.new_folder(folder) as unfinished:
    for name, one in content.items():
      files.write(os.path.join(unfinished, name), one)
    files.write(os.path.join(unfinished, bundle_files.MANIFEST), bundle_files.manifest(versions, content))


def _check(plan: plans.Plan, process: Any) -> None:
  """Raises `ValueError` if the process is not that of the plan, or it is known why there is no bundle of it."""
  if plan.process is not process:
    raise ValueError(
      'This process is not the one that the plan built last, so its account may be of other rounds. Give the result of '
      'plan.build_process, or plan=None for a process without an account.'
    )
  facts = plan.mechanism.facts
  if facts.waits:
    raise ValueError(
      'A bundle plays rounds with one message and one sum, and here clients wait for others in mid-round: '
      f'{facts.waits}.'
    )
  if facts.unexported:
    raise ValueError(f'A bundle of this run would be wrong: {facts.unexported}. Give a noise seed, or another method.')
