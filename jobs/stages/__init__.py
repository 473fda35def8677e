"""The programs of the jobs besides training, one process each: prepare, evaluate, serve, report.

    prepare     tokenize the data of all runs of a submission, before any trains
    evaluate    compute the loss of a trained run on the held-out samples
    serve       measure a load of requests on a trained run
    report      write the report of the sweep
    record      the start and end events of a stage

jobs.submit.stages submits them; jobs.submit.stage_states reads their state.
"""
