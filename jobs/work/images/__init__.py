"""Training of ResNet on JPEG images: shards made and read, decoding and augmentation, and the model.

    settings   the keys `images`, and the sizes of the networks
    shards     tar shards (WebDataset) and RecordIO files (MXNet): found, divided among readers, read
    recordio   the RecordIO format
    make       random images of ImageNet's sizes, written as shards; `slurmscale images`
    loader     images chosen by the workers of each rank, their order, and held-out ones
    decoding   crops, pixels by Pillow, and what DALI gets instead
    dali       pixels by NVIDIA DALI
    resnet     the model
    trainer    model and optimizer of a rank, validation, and checkpoints

jobs.work.images.train trains. Only loader, decoding, dali, resnet and trainer import torch.
"""
