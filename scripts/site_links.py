#!/usr/bin/env python3
"""Preprocessor of mdBook: chapters outside docs/, and links that leave it.

A chapter outside docs/ (`../ARCHITECTURE.md`) becomes a page of the site's root
(`architecture.md`). Links between chapters follow their pages, and have the title of a chapter
where their text is its file name; links to other files of the repository lead to its web page.
"""

import json
import os
import posixpath
import re
import sys

LINK = re.compile(r"\[([^][]*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def chapters(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def page_of(source):
    """Path of a chapter's page below the site's root."""
    if not source.startswith("../"):
        return source
    return source.removeprefix("../").replace("/", "-").lower()


def rewritten(text, target, source, titles, config, root):
    """Text and target of a link of the chapter `source`, as its page needs them."""
    path, mark, anchor = target.partition("#")
    if not path or "://" in target or target.startswith("mailto:"):
        return text, target
    src = config["book"]["src"]
    file = posixpath.relpath(posixpath.join(src, posixpath.dirname(source), path), src)
    here = posixpath.dirname(page_of(source)) or "."
    if file in titles:
        names = (path, posixpath.basename(path))
        text = titles[file] if text in names else text
        return text, posixpath.relpath(page_of(file), here) + mark + anchor
    is_copied = not file.startswith("../") and not file.endswith(".md")
    if is_copied and os.path.isfile(os.path.join(root, src, file)):
        return text, posixpath.relpath(file, here) + mark + anchor
    inside = posixpath.normpath(posixpath.join(src, file))
    kind = "tree" if os.path.isdir(os.path.join(root, inside)) else "blob"
    repository = config["output"]["html"]["git-repository-url"]
    return text, f"{repository}/{kind}/main/{inside}{mark}{anchor}"


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    config, root = context["config"], context["root"]
    written = [chapter for chapter in chapters(book["items"]) if chapter["source_path"]]
    titles = {chapter["source_path"]: chapter["name"] for chapter in written}
    for chapter in written:
        source = chapter["source_path"]

        def link(match):
            text, target = rewritten(match[1], match[2], source, titles, config, root)
            return f"[{text}]({target})"

        parts = FENCE.split(chapter["content"])
        chapter["content"] = "".join(
            part if part.startswith("```") else LINK.sub(link, part) for part in parts
        )
        chapter["path"] = page_of(source)
    json.dump(book, sys.stdout)


main()
