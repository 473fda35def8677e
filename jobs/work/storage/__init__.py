"""Tests of storage without training: checkpoints of any model, loaders over data, and fio.

    settings    the keys `storage`
    session     a rank among the others: what it records, refuses and waits for
    place       the directory of a test, which is removed at its end
    page_cache  the page cache of a node: emptied of files, and measured
    checkpoint  checkpoints, written and read
    state       the tensors of a checkpoint on a rank
    loader      samples, read by the workers of a loader
    samples     files of samples, made and read
    fio         the program

jobs.work.storage.measure runs them, and jobs.work.storage.space counts what they need. Settings, place, page_cache and
samples do not import torch.
"""
