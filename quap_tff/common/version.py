"""The version of the library, which certificates and runs name."""

VERSION = '0.2.0'
