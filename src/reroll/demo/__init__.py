"""A real GRPO training of a small language model through reroll, on the CPU, in a minute or two: `reroll demo`.

    letters     what is learnt, and how it is checked
    policy      the model; `warmup` gives it something to reinforce
    engine      generates responses, and can be stopped between two tokens
    producing   what turns the engine's work into groups: in turn with the trainer, or ahead of it
    grpo        the trainer: the part to copy
    modes       how the same trainer and buffer are configured: on policy, asynchronous, replay
    running     one run, measured (`measuring`); `comparing` and `wording` say what follows from all of them
    serving     the buffer in a process of its own: a server
    crash       kills each of three processes (`lives`, `processes`) once, and checks what is left
    report      pictures (`charts`) and numbers, as one HTML file and JSON
    command     all of it, with live progress

It uses the public names of reroll only. Needs the extra `demo`.
"""
