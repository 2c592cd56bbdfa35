"""Certificates of certified runs, in folders that anybody can check.

    quap_tff.certificates.write_run(folder, plan, …)                      a new folder, with its certificate
    quap_tff.certificates.gate_logs.write_log(folder, gate, log, about)   the same for a gate's log
    quap_tff.certificates.verify(folder)                                  makes it again, and compares

`folder` is that of the certificate: a run's folder holds it as `certificate`, and `verify` takes either.

The files say what was computed and who took part; the certificate says what this guarantees. docs/privacy.md has the
theorem. Nothing here imports TensorFlow.
"""

from quap_tff.common import lazy

__getattr__, __dir__ = lazy.exports(
  __name__,
  {
    'folders.about': ['About', 'SECAGG'],
    'folders.folder': [],
    'gate_logs': [],
    'verifying': ['remove', 'Verdict', 'verify', 'write_run'],
  },
)
