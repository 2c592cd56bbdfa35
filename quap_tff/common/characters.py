"""Which characters nobody sees: the one list of those that texts and names are checked for."""

import itertools
import unicodedata

# Control characters, marks of bidirectional text and other format characters, halves of surrogate pairs, separators of
# lines and of paragraphs. They are not seen, or change the order in which others are seen.
_CATEGORIES = frozenset(('Cc', 'Cf', 'Cs', 'Zl', 'Zp'))
# Letters, marks and symbols that are not seen either: fillers and blanks.
_FILLERS = (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0, 0x13441, 0x13442, 0x16FE4, 0x1D159)
# Selectors of variants, and places that Unicode keeps for characters without a shape.
_RANGES = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xFFF0, 0xFFF9), range(0xE0000, 0xE1000))
_SELECTORS = tuple(itertools.chain(*_RANGES))
_BLANK = frozenset(map(chr, (*_FILLERS, *_SELECTORS)))


def is_unseen(character: str) -> bool:
  """True if a character is not seen, or changes the order in which others are seen. A space is not one."""
  return character in _BLANK or unicodedata.category(character) in _CATEGORIES
