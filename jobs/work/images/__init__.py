"""Training of ResNet on JPEG images: shards made and read, decoding and augmentation, and the model.

    settings   the keys `images`, and the sizes of the networks
    shards     tar shards (WebDataset) and RecordIO files (MXNet): found, divided among readers, read
    recordio   the RecordIO format
    make       random images of ImageNet's sizes, written as shards; `slurmscale images`
    loader     images chosen by the workers of each rank, their order, and held-out ones
    decoding   crops, pixels by Pillow, and what DALI gets instead
    dali       pixels by NVIDIA DALI
    resnet     the model
    jpegs      the images of a run: read or made, divided among its ranks
    trainer    model and optimizer of a rank, validation, and checkpoints

jobs.work.train.loop trains with the data of jpegs and the steps of trainer. Only loader, decoding, dali, resnet, jpegs
and trainer import torch.
"""
