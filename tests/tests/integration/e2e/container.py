"""What a program of the tests finds in its container."""

import glob


def content(files):
    """The contents of all readable files of a pattern."""
    text = b""
    for file in glob.glob(files):
        try:
            text += open(file, "rb").read()
        except OSError:
            pass
    return text
