"""What the jobs beside training execute, one process each: prepare, evaluate, report.

    prepare     tokenize the data of all runs of a submission, before any trains
    evaluate    the loss of one run's weights on the samples held out
    report      the scaling report of the sweep
    record      how each of them tells that it started and how it ended

jobs.submit.stages submits them; jobs.submit.stage_states says where they stand.
"""
