"""Reward of the quick start's sums as a function: 1 for the right sum, less for a distant one."""


def near(prompt, completion, answer):
    try:
        return 1 / (1 + abs(int(completion) - int(answer)))
    except ValueError:  # the completion is no number
        return 0
