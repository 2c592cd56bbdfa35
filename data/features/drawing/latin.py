"""Shapes of digits and Latin letters, as the authors of this program write them. No data is read.

A shape is a few strokes over places on a grid: `48` is the place with x = 4 and y = 8, where x goes from 0 at the left
to 8 at the right and y from 0 at the top to 8 at the bottom. A stroke that begins with `/` runs straight from place to
place, and one that begins with `~` is a Catmull-Rom curve through its places, closed if it ends where it began.
"""

import numpy as np

from data.features.drawing import characters

# By the characters that they draw. `Cc` has the same shape in both cases, because drawings are of all sizes alike.
SHAPES: dict[str, tuple[str, ...]] = {
  '0': ('~40 21 14 27 48 67 74 61 40',),
  '1': ('/40 48', '/22 40 48', '/22 40 48 /28 68'),
  '2': ('~12 30 61 63 45 18 18 78', '~12 30 61 63 36 18 07 16 38 78'),
  '3': ('~11 30 62 34 34 65 67 38 07', '/11 61 34 ~34 65 67 38 07'),
  '4': ('/30 05 75 /52 58', '/10 14 64 /60 68', '/58 50 05 85'),
  '5': ('/60 10 14 ~14 43 65 57 28 07',),
  '6': ('~60 32 15 17 48 66 54 25 16',),
  '7': ('/00 60 28', '/00 60 28 /14 54'),
  '8': ('~60 30 12 44 66 38 16 44 61 50', '~40 22 44 62 40 ~44 16 48 76 44'),
  '9': ('~61 30 12 24 53 61 ~61 63 58', '~61 30 12 24 53 61 /61 58', '~61 30 12 24 53 61 ~61 65 48 17'),
  'A': ('/08 40 88 /15 75', '~08 13 40 73 88 /05 85'),
  'B': ('/10 18 ~10 51 63 34 14 ~14 55 77 48 18',),
  'Cc': ('~71 40 12 05 37 58 77',),
  'D': ('/10 18 ~10 51 74 57 18',),
  'E': ('/70 10 18 78 /14 64', '~70 30 22 44 44 16 38 77'),
  'F': ('/70 10 18 /14 54',),
  'G': ('~71 40 12 05 38 67 75 /45 75', '~71 40 12 05 38 67 75 /45 85 88'),
  'H': ('/10 18 /70 78 /14 74',),
  'I': ('/10 70 /40 48 /18 78',),
  'J': ('~60 66 48 16', '/20 80 ~60 66 38 16'),
  'K': ('/10 18 /70 14 78', '/10 18 /70 15 /34 78'),
  'L': ('/10 18 78', '~10 17 28 78'),
  'M': ('/08 10 45 70 88',),
  'N': ('/18 10 78 70',),
  'Oo': ('~40 11 04 17 48 77 84 71 40',),
  'P': ('/10 18 ~10 50 73 54 14',),
  'Q': ('~40 11 04 17 48 77 84 71 40 /56 88',),
  'R': ('/10 18 ~10 50 72 54 14 /34 78',),
  'Ss': ('~71 40 12 34 65 67 38 07',),
  'T': ('/00 80 /40 48',),
  'U': ('~10 15 28 58 75 70', '~10 15 28 58 75 70 /70 78'),
  'Vv': ('/00 48 80',),
  'Ww': ('/00 28 42 68 80', '~00 17 37 42 42 57 77 80'),
  'Xx': ('/00 88 /80 08',),
  'Y': ('/00 44 80 /44 48', '/00 44 /80 28'),
  'Z': ('/00 80 08 88', '/00 80 08 88 /24 64'),
  'a': ('~63 41 13 16 38 66 63 /62 68', '~63 41 13 16 38 66 63 ~62 66 88', '~22 41 63 68 ~64 34 16 38 66'),
  'b': ('/10 18 ~14 43 66 48 17', '~10 17 38 65 43 15'),
  'd': ('/70 78 ~74 43 16 48 77', '/70 78 ~74 43 16 48 77 77 88'),
  'e': ('~15 55 73 31 14 27 57 76',),
  'f': ('~71 50 42 48 /14 64',),
  'g': ('~62 31 13 34 62 ~62 67 38 17', '~62 31 13 34 62 ~62 66 48 27 45 67 87'),
  'h': ('/10 18 ~15 43 64 68',),
  'i': ('/43 48 /40 41',),
  'j': ('~43 47 38 17 /40 41',),
  'k': ('/10 18 /63 15 68',),
  'l': ('~18 44 51 30 23 27 48 67', '~30 36 48 57'),
  'm': ('/03 08 ~04 22 34 38 ~34 62 74 78',),
  'n': ('/13 18 ~15 42 64 68',),
  'p': ('/12 18 ~13 41 63 55 15',),
  'q': ('~62 31 13 35 63 /62 68', '~62 31 13 35 63 ~62 68 86'),
  'r': ('/13 18 ~15 33 63',),
  't': ('/40 48 /13 73', '~40 47 58 77 /13 73'),
  'u': ('~12 16 38 65 62 /62 68',),
  'y': ('/12 46 /72 28', '~12 15 36 64 62 ~62 67 38 17'),
  'z': ('/12 62 18 68', '~12 42 53 34 34 65 57 28', '/12 62 ~62 18 /18 68'),
}
_CURVE_POINTS = 20  # From one place to the next.


def alphabet() -> characters.Alphabet:
  """All shapes, in the order of `SHAPES`."""
  shapes = [shape for forms in SHAPES.values() for shape in forms]
  strokes = np.zeros((len(shapes), characters.MAX_STROKES, characters.POINTS, 2), np.float32)
  present = np.zeros(strokes.shape[:2], bool)
  for i, shape in enumerate(shapes):
    for s, stroke in enumerate(shape.replace('/', ',/').replace('~', ',~').split(',')[1:]):
      strokes[i, s], present[i, s] = _points(stroke), True
  return characters.Alphabet(strokes, present)


def _points(stroke):
  """Points float[32, 2] at equal distances along a stroke, x in [-0.75, 0.75] and y in [-1, 1]."""
  path = np.array([[int(digit) for digit in place] for place in stroke[1:].split()], np.float64)
  if stroke[0] == '~':
    path = _catmull_rom(path)
  length = np.append(0, np.cumsum(np.hypot(*np.diff(path, axis=0).T)))
  at = np.linspace(0, length[-1], characters.POINTS)
  return (np.stack([np.interp(at, length, path[:, axis]) for axis in (0, 1)], axis=1) - 4) / 4 * (0.75, 1)


def _catmull_rom(places):
  """The curve through `places` whose tangent at each is half the way from the place before to the place after."""
  closed = (places[0] == places[-1]).all()
  before, after = (places[-2], places[1]) if closed else (2 * places[0] - places[1], 2 * places[-1] - places[-2])
  around = np.vstack([before, places, after])
  a, b, c, d = (around[i : len(around) - 3 + i, None] for i in range(4))
  t = np.linspace(0, 1, _CURVE_POINTS, endpoint=False)[:, None]
  curve = b + ((c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3) / 2
  return np.vstack([curve.reshape(-1, 2), places[-1:]])
