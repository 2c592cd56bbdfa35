"""Names for values as JSON holds them, whose shape a file says and no type checker knows."""

from collections.abc import Mapping
from typing import Any

# A value that was read, or that can be written: numbers, texts, lists and objects.
Json = Any
# An object, or a row of a table: values by name.
JsonObject = dict[str, Any]
# An object that is only read.
JsonView = Mapping[str, Any]
