"""What tests of systems share with those of the package."""

from tests.quap_tff.conftest import context  # noqa: F401 (a fixture)
