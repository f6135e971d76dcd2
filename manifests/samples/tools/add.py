#!/usr/bin/env python3
"""Tool of tools-command.yaml: adds two numbers, once per process.

Standard input is the arguments, `{"a": "27", "b": "58"}`. Standard output is the sum with three
digits, as the answers of the quick start. The model reads the message of an error.
"""

import json
import sys

arguments = json.load(sys.stdin)
try:
    print(f"{int(arguments['a']) + int(arguments['b']):03}")
except (KeyError, TypeError, ValueError) as error:
    sys.exit(f"a and b must be numbers: {error}")
