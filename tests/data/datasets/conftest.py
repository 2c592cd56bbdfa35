"""What tests of several kinds of datasets share."""

import socket

import pytest

import data


@pytest.fixture(name='load')
def fixture_load(tmp_path):
  """`data.load` of files in `tmp_path`."""
  return lambda spec, folder=tmp_path, **options: data.load(spec, data_dir=str(folder), **options)


@pytest.fixture(name='no_network')
def fixture_no_network(monkeypatch, tmp_path):
  """No caches, and every connection is refused at once."""

  def refuse(*args, **kwargs):
    raise socket.gaierror('no network in this test')

  monkeypatch.setattr(socket, 'create_connection', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)
  monkeypatch.setenv('HOME', str(tmp_path))
