"""The certificate that decoded noise follows its law, and the statistics behind it."""

from cepam.verify.certificate import Certificate, verify

__all__ = ["Certificate", "verify"]
