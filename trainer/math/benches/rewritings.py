"""Other ways to write an answer, and the answer with another number.

Each rule reads the text of an answer, so that it knows neither parser. A rule that does not apply
yields nothing.
"""

import re
from fractions import Fraction

NUMBER = r"-?\d+(?:\.\d+)?"
FRACTION = r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}"
END = rf"(?:{NUMBER}|-?\\[dt]?frac\{{\d+\}}\{{\d+\}}|[-+]?\\infty|-?\\sqrt\{{\d+\}}|\\pi)"


def box(text):
    return f"Therefore, the answer is $\\boxed{{{text}}}$."


def of(text):
    """Forms, whether they are right, and completions."""
    yield "box", True, box(text)
    yield "formula", True, f"So we have that the answer is ${text}$."
    yield "display", True, f"We find\n\\[\n\\boxed{{{text}}}.\n\\]"
    for form, rule in RULES.items():
        if (other := rule(text)) is not None and other != text:
            yield form, True, box(other)
    if (other := another_number(text)) is not None:
        yield "another number", False, box(other)


def another_number(text):
    """The answer with its last number increased by 1."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return None
    start, end = found[-1].span()
    return text[:start] + str(int(text[start:end]) + 1) + text[end:]


def spaces(text):
    if re.search(r"\d(,\d{3}|,\\!|\{,\})", text):  # Perhaps a separator of thousands.
        return None
    return re.sub(r"\s*([=+,]|(?<![\w^])-)\s*", r" \1 ", text).strip()


def style(text):
    plain = re.sub(r"\\[dt]frac\b", r"\\frac", text)
    if re.search(r"\\(left|right)\b", plain):
        return without_left(plain)
    plain = plain.replace("\\frac", "\\dfrac")
    plain = re.sub(r"\\([lg])eq?\b", r"\\\1eq", plain)
    if re.fullmatch(r"\([^()]*\)", plain):
        plain = f"\\left{plain[:-1]}\\right)"
    return plain


def without_left(text):
    return re.sub(r"\\(left|right)\b\s*\.?", "", text)


def value(text):
    """The value of a number or fraction."""
    if re.fullmatch(NUMBER, text):
        return Fraction(text)
    if found := re.fullmatch(FRACTION, text) or re.fullmatch(r"(-?)(\d+)/(\d+)", text):
        sign, above, below = found.groups()
        return Fraction(int(above), int(below)) * (-1 if sign else 1) if int(below) else None
    return None


def decimal(text):
    number = value(text)
    if number is None or "." in text:
        return None
    if number.denominator == 1:
        return f"{number}.0"
    scaled = number * 10**6
    if scaled.denominator != 1:
        return None
    sign, digits = "-" if scaled < 0 else "", f"{abs(scaled.numerator):07}"
    return f"{sign}{digits[:-6]}.{digits[-6:]}".rstrip("0")


def fraction(text):
    number = value(text)
    if number is None:
        return None
    sign = "-" if number < 0 else ""
    return f"{sign}\\frac{{{2 * abs(number.numerator)}}}{{{2 * number.denominator}}}"


def slash(text):
    found = re.fullmatch(FRACTION, text)
    return f"{found[1]}{found[2]}/{found[3]}" if found else None


def sign_above(text):
    found = re.fullmatch(FRACTION, text)
    return f"\\frac{{-{found[2]}}}{{{found[3]}}}" if found and found[1] else None


def thousands(text):
    return f"{int(text):,}" if re.fullmatch(r"-?[1-9]\d{3,}", text) else None


def unit(text):
    return f"{text}\\text{{ cm}}" if value(text) is not None else None


def noun(text):
    return f"{text} apples" if re.fullmatch(NUMBER, text) else None


def named(text):
    return f"x = {text}" if value(text) is not None or re.fullmatch(END, text) else None


def degrees(text):
    found = re.fullmatch(rf"({NUMBER})\s*\^\s*\{{?\\circ\}}?", text)
    return f"{found[1]} \\text{{ degrees}}" if found else None


def root(text):
    return re.sub(r"(?:(?<=[-+({])|^)\\sqrt\{(\d+)\}", r"\1^{1/2}", text)


def parts(text):
    """The values of a list or set of values."""
    inner = re.fullmatch(r"(?:\\left)?\\\{(.*)(?:\\right)?\\\}", text)
    if re.search(r"\d,\d{3}(?!\d)", text) and not inner:
        return None
    found = [part.strip() for part in (inner[1] if inner else text).split(",")]
    return found if len(found) > 1 and all(re.fullmatch(END, part) for part in found) else None


def reversed_list(text):
    found = parts(text)
    return ", ".join(reversed(found)) if found else None


def braces(text):
    found = parts(text)
    return "\\{" + ",".join(found) + "\\}" if found else None


def words(text):
    found = parts(text)
    return ", ".join(found[:-1]) + " \\text{ and } " + found[-1] if found else None


def inequality(text):
    """An interval with a closed or an infinite end as an inequality."""
    found = re.fullmatch(rf"([\[(])\s*({END})\s*,\s*({END})\s*([\])])", without_left(text))
    if not found or ("[" not in text and "]" not in text and "\\infty" not in text):
        return None
    opening, low, high, closing = found.groups()
    signs = {"(": "<", ")": "<", "[": "\\le", "]": "\\le"}
    below = "" if "\\infty" in low else f"{low} {signs[opening]} "
    above = "" if "\\infty" in high else f" {signs[closing]} {high}"
    return f"{below}x{above}" if below or above else None


def union(text):
    if text.count("\\cup") != 1 or not re.match(r"(\\left)?[\[(]", text):
        return None
    left, right = text.split("\\cup")
    return f"{right.strip()} \\cup {left.strip()}"


def swapped(text):
    if text.count("=") != 1 or any(sign in text for sign in ["<", ">", "\\", ",", ";"]):
        return None
    left, right = text.split("=")
    return f"{right.strip()} = {left.strip()}"


def name_removed(text):
    found = re.fullmatch(r"[a-zA-Z]\s*=\s*(.+)", text)
    return found[1] if found and value(found[1].strip()) is not None else None


def plain_text(text):
    found = re.fullmatch(r"\\(?:text|mathrm|textbf)\{([^{}]+)\}", text)
    return found[1] if found else None


def wrapped_text(text):
    return f"\\text{{{text}}}" if re.fullmatch(r"[a-zA-Z ]{2,}", text) else None


RULES = {
    "spaces": spaces,
    "style": style,
    "decimal": decimal,
    "fraction": fraction,
    "slash": slash,
    "sign above": sign_above,
    "thousands": thousands,
    "unit": unit,
    "noun": noun,
    "named": named,
    "name removed": name_removed,
    "degrees": degrees,
    "root": root,
    "reversed": reversed_list,
    "braces": braces,
    "words": words,
    "inequality": inequality,
    "union": union,
    "swapped": swapped,
    "plain text": plain_text,
    "wrapped text": wrapped_text,
}
