"""From legal points to job ids, and the commands on a sweep: all points are prepared, then all or none are submitted.

facts       submissions, ledger, intents, job_state, job_log, provenance, progress; hosts/, the evidence about nodes;
            decision/, STOP or RESTART
trust       own_sweeps, received, integrity, cancellation
Slurm       environment, slurm_commands
scripts     batch_script, container
launchers   launchers/, one file each; stages, the chain around training
states      history, states, stage_states
commands    commands, watch, backlog
in a job    allocation, pilot, pilot_packing, held, local_queue, requeue; spares/, restarts on spare nodes
"""
