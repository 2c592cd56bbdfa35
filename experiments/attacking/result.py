"""The result of a study of attacks: rows of figures, pictures, and how to read them."""

from collections.abc import Mapping
import csv
import os
from typing import Callable, NamedTuple

from quap_tff.common import files
from quap_tff.common import json_types


class StudyResult(NamedTuple):
  """The result of a study.

  Attributes:
    name: Its table is NAME.csv.
    rows: A dict for each line of the table, ready for JSON. A figure that does not exist is None.
    pictures: Draws PNG files, by name.
    captions: The caption of each picture, by its name.
    notes: Paragraphs on how to read the rows.
  """

  name: str
  rows: list[json_types.JsonObject]
  pictures: Callable[[], Mapping[str, bytes]]
  captions: Mapping[str, str] = {}
  notes: tuple[str, ...] = ()

  def write_files(self, folder: str) -> dict[str, bytes]:
    """Writes the table and the pictures into a folder, which is made if need be. Returns the pictures by name."""
    os.makedirs(folder, exist_ok=True)
    headings = list(self.rows[0]) if self.rows else []
    with open(os.path.join(folder, f'{self.name}.csv'), 'w', newline='', encoding='utf-8') as f:
      writer = csv.DictWriter(f, headings, lineterminator='\n')
      writer.writeheader()
      writer.writerows(self.rows)
    pictures = dict(self.pictures())
    for name, content in pictures.items():
      files.write(os.path.join(folder, name), content)
    return pictures
