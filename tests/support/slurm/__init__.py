"""A real Slurm on this machine for the tests: daemons, accounting and several nodes, up in seconds, gone afterwards.

Not a simulator and not a service: every daemon is Debian's own, runs from one private directory and listens on ports
of its own, so that a Slurm already installed here is neither used nor disturbed. `cluster.py` brings it up and down,
`fixture.py` is pytest's fixture, `python -m tests.support.slurm` brings it up by hand, `tests/install.sh slurm`
installs it.
"""
