"""Every public name of `cepam.verify` at work: the certificate."""

import cepam
from cepam.verify import Certificate, verify

found: Certificate = verify(cepam.Codec(cepam.Gaussian(0.01), "Z1"), samples=10_000, false_alarm=1e-9)
assert found.passed
