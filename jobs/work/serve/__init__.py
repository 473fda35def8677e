"""Serving: replicas of a server of the OpenAI interface, a load balancer in front, and a load.

    settings    the keys `engine.server` and `serving`
    weights     the model's directory
    conversion  the program that converts it from LitGPT's layout where the server reads Hugging Face's
    words       commands with {names} that are replaced
    ports       ports that are free and stay so
    piece       a launched program with its log: server, balancer, load generator
    balancer    configuration of haproxy and nginx
    prompts     the pool of prompts
    load        the command of the load generator
    bench       the loads of a run: warm-up, load, loads of a search
    search      the highest concurrency within limits
    after_training  the run that serves a trained model (stages.serve)
    probe       health and counters of a server
    counters    counters of a server, from /metrics
    link        the connection of each rank with rank 0

jobs.work.serve.serve puts the pieces together. Only the conversion imports torch.
"""
