"""The client of PBS Pro and OpenPBS: calls of its commands, the states of jobs, cancellation.

    call       how qsub, qstat, qdel and pbsnodes are called, and what their messages mean
    commands   each command, called once for many jobs
    states     the state of a job of PBS in the words that all launchers share
    stages     the stages around training as jobs of PBS
    cancel     ends the jobs of a sweep, and no others

A job id in a ledger has no server: `14` stands for `14.pbshead`, and names the log files, too.
"""
