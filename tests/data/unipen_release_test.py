"""Files in the format of UNIPEN's release, which the tests write, and the images that are drawn of them."""

import pathlib

import numpy as np
import pytest

from data import reading
from data import unipen
from data import unipen_release
from experiments import convert_unipen
from experiments.command import command_line

# Component 0 is a stem, 1 a bar with a pen that is in the air between, and 3 a slanted line.
_STROKES = """.VERSION 1.0
.COMMENT .PEN_DOWN is no keyword here
.COORD X Y T
.X_POINTS_PER_INCH 100
.Y_POINTS_PER_INCH 200
.WRITER_ID ann
.DT 100
.PEN_DOWN
0 0 1
0 200 2
.PEN_UP
.PEN_DOWN
-50 200 3
50 200 4
.PEN_UP
10 10 5
.PEN_DOWN
0 0 6
50 100 7
100 200 8
.PEN_UP
"""


@pytest.fixture(name='release')
def _release(tmp_path):
  """A release with one T and one 1 of ann; a function that adds more segments, or another file to include."""

  def write(segments='', name='one', strokes=_STROKES, category='1a'):
    for folder in (*unipen_release.CATEGORIES, category):
      (tmp_path / 'data' / folder / 'abc').mkdir(parents=True, exist_ok=True)
    (tmp_path / 'include' / 'abc' / 'data').mkdir(parents=True, exist_ok=True)
    (tmp_path / 'include' / 'abc' / 'data' / f'{name}.dat').write_text(strokes)
    text = f'.VERSION 1.0\n.INCLUDE abc/data/{name}.dat\n{segments}\n'
    (tmp_path / 'data' / category / 'abc' / f'{name}.dat').write_text(text)
    return tmp_path

  write('.SEGMENT CHARACTER 3 ? "1"')
  write('.SEGMENT CHARACTER 0-1 OK  "T"', category='1b')
  return write


def _read(folder):
  return {one.label: one for one in unipen_release.read_release(str(folder))}


def test_components_without_points_have_no_number_and_a_pen_in_the_air_leaves_no_ink(release):
  found = _read(release('.SEGMENT CHARACTER 0-3 ? "t"', category='1c'))
  assert sorted(found) == [1, 10 + ord('T') - ord('A'), 36 + ord('t') - ord('a')]
  stem, bar = found[29].strokes
  # In inches: the tablet has twice as many points to an inch of height.
  np.testing.assert_allclose(stem, [[0, 0], [0, 1]])
  np.testing.assert_allclose(bar, [[-0.5, 1], [0.5, 1]])
  assert len(found[55].strokes) == 3 and found[1].writer == 'ann'


def test_a_segment_may_begin_and_end_within_a_component(release):
  found = _read(release('.SEGMENT CHARACTER 1:1-3:1,0 ? "z"', category='1c'))
  lengths = [len(stroke) for stroke in found[61].strokes]
  assert lengths == [1, 2, 2]


def test_what_cannot_be_drawn_or_is_there_twice_is_left_out(release):
  segments = ['9 ? "a"', '0-9 ? "d"', '2 ? "b"', '0:0-0:0 ? "c"', '3 ? ";"']
  folder = release('\n'.join(f'.SEGMENT CHARACTER {segment}' for segment in segments), category='1c')
  assert sorted(_read(folder)) == [1, 29]
  release('.SEGMENT CHARACTER 3 ? "1"', name='two', strokes=_STROKES.replace('ann', 'bob'))
  assert [one.writer for one in unipen_release.read_release(str(folder))] == ['ann', 'ann']


def test_sessions_of_one_person_are_one_writer(release):
  longer = _STROKES.replace('100 200 8', '100 300 8')
  release('.SEGMENT CHARACTER 3 ? "1"', name='one', strokes=_STROKES.replace('ann', 'r02-15'))
  folder = release('.SEGMENT CHARACTER 3 ? "1"', name='two', strokes=longer.replace('ann', 'r03-15'))
  assert {one.writer for one in unipen_release.read_release(str(folder)) if one.label == 1} == {'r-15'}


def test_files_include_others_by_the_folder_include_or_by_their_own(release, tmp_path):
  head, _, body = _STROKES.partition('.WRITER_ID')
  (tmp_path / 'include' / 'abc' / 'head.doc').write_text(head)
  for name in ('abc/head.doc', '../head.doc'):
    folder = release('.SEGMENT CHARACTER 3 ? "1"', strokes=f'.INCLUDE {name}\n.COORD X Y T\n.WRITER_ID{body}')
    assert sorted(_read(folder)) == [1, 29]


@pytest.mark.parametrize(
  'before, after, message',
  [
    ('10 10 5', '10 10', "one.dat: expected 3 numbers for each point, found '10 10'"),
    ('.VERSION', '.INCLUDE abc/none.doc\n.VERSION', 'none.doc not found; expected a file of UNIPEN'),
  ],
)
def test_files_that_cannot_be_read_are_named(release, before, after, message):
  folder = release('.SEGMENT CHARACTER 3 ? "1"', strokes=_STROKES.replace(before, after))
  with pytest.raises(reading.DataFileError, match=message):
    unipen_release.read_release(str(folder))


def test_ink_is_in_the_middle_upright_and_as_wide_as_the_writers_pen():
  one = unipen_release.PenCharacter(1, 'ann', (np.array([[0.0, 0], [0, 1]]),))
  corner = unipen_release.PenCharacter(2, 'ann', (np.array([[0.0, 0], [0, 1], [1, 1]]),))
  file = unipen_release.drawn([one, corner])
  assert file.x.shape == (2, 28, 28) and file.x.dtype == np.uint8 and file.x.max() == 255
  rows, columns = (np.flatnonzero(file.x[0].any(axis=axis)) for axis in (1, 0))
  assert (rows[0], rows[-1]) == (3, 24)
  # 22 pixels are the length with the pen's width: 1.15 times the median character.
  assert columns.size * 0.5 < 22 * 0.15 / 1.15 < columns.size + 0.5
  np.testing.assert_array_equal(file.x[0], file.x[0, :, ::-1])
  left_top, right_bottom = file.x[1, :14, :14].sum(), file.x[1, 14:, 14:].sum()
  assert left_top > 1000 and right_bottom == 0


def test_the_program_writes_the_file_that_the_loader_reads(release, tmp_path, capsys):
  release('.SEGMENT CHARACTER 3 ? "1"', name='two', strokes=_STROKES.replace('ann', 'bob').replace('100 200', '90 200'))
  output = tmp_path / 'new' / unipen.FILENAME
  assert command_line.status_of(convert_unipen.main, ['', f'--release={tmp_path}', f'--output={output}']) == 0
  assert '3 characters of 2 writers' in capsys.readouterr().out
  file = unipen.read_unipen(str(tmp_path / 'new'))
  assert file.y.tolist() == [1, 29, 1] and file.writer.tolist() == [0, 0, 1]
  assert 'ann' not in pathlib.Path(output).read_bytes().decode('latin-1')


def test_a_folder_without_the_release_is_refused(tmp_path, capsys):
  arguments = ['', f'--release={tmp_path}', f'--output={tmp_path / "out.npz"}']
  assert command_line.status_of(convert_unipen.main, arguments) == command_line.FAILED
  assert "data/1a not found; expected the folder of UNIPEN's release" in capsys.readouterr().err
  assert command_line.status_of(convert_unipen.main, arguments[:2]) == command_line.FAILED
  assert '--output is missing' in capsys.readouterr().err
