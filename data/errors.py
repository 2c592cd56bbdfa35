"""The error for a data file that is missing, damaged or the wrong one."""


class DataFileError(ValueError):
  """Says which file, what was expected in it, what was found, and what to do."""
