"""Runs a matrix of training cells over seeds, one after another, as ordinary train.py and evaluate.py calls.

    python -m loopformer.cells --matrix configs/ablations/matrix.yaml --cells arch4 arch4_no_bridge --seeds 0 1 2 \
        --output runs/ablations --evaluate

Finished runs are skipped, interrupted ones resumed, so the same command goes on where it was stopped.
"""
