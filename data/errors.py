"""The error of a data file that is missing, damaged or not what it should be."""


class DataFileError(ValueError):
  """Says which file, what was expected in it, what was found, and what to do."""
