"""Small machines: finite-state machines over a tape, coloured graphs, register and stack programs.

Looped models execute them, one loop an instruction; ordinary ones write their runs. The machine's pointer is a name
that the prompt spells out next to every cell or line, so that moving it is a lookup, the same operation the graph task
asks for.

    words             the vocabulary: every word is one token of the tokenizers we use
    machine           what all machines share: arrays, runs, held-out tables
    tape              finite-state machines and coloured graphs
    program           programs: lines, flow, prompts
    register_program  SET, MOV, INC, DEC and conditional jumps
    stack_program     PUSH, POP, DUP, INC
    family            the five tasks, their sizes and their curricula
    splits            named evaluation splits
    renderings        runs as text for ordinary models
"""
