"""From legal points to job ids, and the commands on a sweep: all points are prepared, then all or none are submitted.

preparation/   what a run directory contains before its job starts, with the batch script
launchers/     one file each; launch and stages, the chain around training
slurm/, pbs/   the clients of the schedulers; scheduler_call and queues are what they share
sweeps/        a sweep on disk: ledger, submissions, intents, backlog
trust/         own sweeps, received ones, integrity; cancellation
states         states, stage_states, job_state; watching/, the live table
in a job       allocations/, whose nodes runs share; spares/; local_queue; requeue, with decision/ and hosts/
"""
