"""Settings of SGLang for loop.py and serving.py."""

# Samples of a step.
SAMPLES = 512
# Tokens of the longest prompt with its completion.
LONGEST_SEQUENCE = 256 + 1024
# SGLang admits one request less than its limit while a prompt is computed in parts: the last sample
# of a step would begin when the first one ends.
SPARE_REQUESTS = 32


def flags(attention_backend, engines=1):
    """Flags of each of the servers that share a GPU of 80 GB or more, for the 1.5B shape."""
    requests = SAMPLES // engines + SPARE_REQUESTS
    # SGLang takes its share of the memory that is free when it starts, so servers that start at the
    # same time get a limit in tokens.
    pool = [f"--max-total-tokens={requests * LONGEST_SEQUENCE}"] if engines > 1 else []
    return [
        f"--attention-backend={attention_backend}",
        "--mem-fraction-static=0.8",
        *pool,
        f"--max-running-requests={requests}",
        "--disable-piecewise-cuda-graph",
        "--cuda-graph-bs",
        *map(str, [1, 4, 8, 16, *range(32, requests + 1, 32)]),
    ]
