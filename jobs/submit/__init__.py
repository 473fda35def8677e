"""From legal points to job ids, and the commands on a sweep: all points are prepared, then all or none are submitted.

preparation/   the contents of a run directory before its job starts
launchers/     one file each; launch and stages, the chain around training
slurm/, pbs/   the clients of the schedulers, with their batch scripts; scheduler_call and queues serve both
sweeps/        a sweep on disk: ledger, submissions, intents, backlog
trust/         own sweeps, received ones, integrity; cancellation
states         states, stage_states, job_state; watching/, the live table
in a job       allocations/, whose nodes runs share; spares/; local_queue; requeue, with decision/ and hosts/
"""
