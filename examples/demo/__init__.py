"""GRPO training of a small language model through reroll, on the CPU, in a minute or two: `make demo`.

    sorting_task  the prompts and the checker
    policy        the transformer, its supervised warm-up, and its weight files
    engine        token-by-token generation that can be interrupted
    producer      generates groups: in turn with the trainer, or ahead of it
    grpo          the trainer: the part to copy
    modes         five configurations of the same buffer and trainer
    run           one measured training
    compare       medians over the seeds, and what they show about replay
    report        charts and tables, as one HTML file and as JSON
    crash         kills trainer, producer and buffer once each, and checks the outcome

The demo uses the public names of reroll only.
"""
