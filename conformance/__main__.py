"""``python -m conformance`` is the command ``vtoken``."""

from conformance.cli import main

main()
