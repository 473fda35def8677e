"""Tests of storage without training: checkpoints of any model, loaders over data, and fio."""
