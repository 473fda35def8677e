"""Kinds of work that a run does: training, evaluation, serving, tests of storage, training on images."""
