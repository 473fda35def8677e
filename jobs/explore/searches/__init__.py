"""Searches of `slurmscale tune`; `tune.search` names one."""
