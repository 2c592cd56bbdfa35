"""Names of clients in a log: each is one client, and no two can be taken for each other."""

import unicodedata

# Categories of characters that nobody sees, and further characters that nobody sees: fillers and selectors of variants.
_UNSEEN = frozenset(('Cc', 'Cf', 'Cs', 'Zl', 'Zp', 'Zs'))
_FILLERS = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)
_SELECTORS = (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
_BLANK = frozenset(map(chr, (*_FILLERS, *_SELECTORS)))


class AmbiguousNameError(Exception):
  """A name that cannot be told from another one: (the cell, the other name), or (the cell, None) without any other."""


class Places(dict[str, int]):
  """The place of each client by what a cell says, spaces around it included; -1 for nobody.

  Attributes:
    names: The clients, stripped, by place.
  """

  def __init__(self) -> None:
    super().__init__({'': -1})
    self.names: list[str] = []
    # Of the names that are not their own keys.
    self._keys: dict[str, int] = {}

  def __missing__(self, text: str) -> int:
    name = text.strip()
    if name != text:
      self[text] = place = self[name]
      return place
    folded = key(name)
    if not folded:
      raise AmbiguousNameError(text, None)
    same = self._keys.get(folded, self.get(folded))
    if same is not None:
      raise AmbiguousNameError(text, self.names[same])
    place = self[name] = len(self.names)
    self.names.append(name)
    if folded != name:
      self._keys[folded] = place
    return place


def key(name: str) -> str:
  """The name without case, spaces and invisible characters, in one form of Unicode."""
  if name.isascii():
    return name.lower() if name.isprintable() and ' ' not in name else _visible(name.lower())
  folded = unicodedata.normalize('NFKC', _visible(name)).casefold()
  return _visible(unicodedata.normalize('NFKC', folded))


def _visible(text: str) -> str:
  return ''.join(c for c in text if unicodedata.category(c) not in _UNSEEN and c not in _BLANK)
