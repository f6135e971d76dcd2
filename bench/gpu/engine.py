"""Settings of SGLang for loop.py and serving.py."""

# Samples of a step.
SAMPLES = 512
# SGLang admits one request less than its limit while a prompt is computed in parts: the last sample
# of a step would begin when the first one ends.
REQUESTS = SAMPLES + 32
GRAPHS = [1, 4, 8, 16, *range(32, REQUESTS + 1, 32)]


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
