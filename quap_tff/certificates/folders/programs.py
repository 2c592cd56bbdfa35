"""The files that a program puts into its folders beyond the files of every certified run, and how they are checked.

A folder says which program made it, and `folder.PROGRAMS` has what verification must know of each. This module is of
library code, which puts nothing else there.
"""

from quap_tff import accounting
from quap_tff.certificates.folders import about as abouts
from quap_tff.plans.accounts import run_account


class Program:
  """Library code, and the base of other programs.

  Attributes:
    takes_arrays: Whether the model may be arrays (.npz).
    empty_files: Files that must be empty.
    empty_folders: Subfolders that may be empty.
    unchecked: The parts of its files that nothing here can make again, a clause each.
  """

  takes_arrays: bool = True
  empty_files: frozenset[str] = frozenset()
  empty_folders: frozenset[str] = frozenset()
  unchecked: tuple[str, ...] = ()

  def owns(self, name: str, about: abouts.About) -> bool:
    """True if a file, by its relative path, is one that the program puts there."""
    del name, about
    return False

  def keeps(self, name: str) -> bool:
    """True if the program keeps a file to itself, so that a certificate does not name it."""
    del name
    return False

  def check(self, path: str, plan: run_account.RunAccount, ledger: accounting.RunLedger) -> None:
    """Raises `FolderError` if a file of the program is missing, damaged, or holds anything that is not defined."""
    del path, plan, ledger

  def may_hold_anything(self, name: str) -> bool:
    """True if nothing here can make any part of a file again."""
    del name
    return False

  def warnings(self, path: str, is_checked: bool) -> list[str]:
    """Sentences that a reader should know about the program's files.

    Args:
      path: The folder.
      is_checked: Whether the program has compared its files with the others.
    """
    del path, is_checked
    return []
