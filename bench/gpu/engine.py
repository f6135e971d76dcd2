"""Settings of SGLang for loop.py and serving.py."""

# Samples of a step.
SAMPLES = 512
# Requests of a step, and of the next one beside it.
REQUESTS = 2 * SAMPLES
GRAPHS = [1, 4, 8, 16, *range(32, SAMPLES, 32), *range(SAMPLES, REQUESTS + 1, 64)]


def flags(attention_backend):
    """Flags of a server of one GPU of 80 GB or more for the 1.5B shape."""
    return [
        f"--attention-backend={attention_backend}",
        "--mem-fraction-static=0.8",
        f"--max-running-requests={REQUESTS}",
        "--disable-piecewise-cuda-graph",
        "--cuda-graph-bs",
        *map(str, GRAPHS),
    ]
