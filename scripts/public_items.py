#!/usr/bin/env python3
"""The public items of the library, of its testkit and of its server, one a line with the declaration, sorted.

    cargo doc --all-features --no-deps
    scripts/public_items.py target/doc > docs/public-items.txt

It reads the pages that rustdoc wrote and needs the standard library of Python alone. A crate is followed from its first page, since rustdoc leaves pages of
items that are gone. A line is the path, a colon, and what rustdoc shows as the declaration, without links and line breaks. Left out are the traits
that the standard library derives, automatic traits, blanket implementations and the values of constants.
"""

import html
import re
import sys
from pathlib import Path

CRATES = ["trifuse", "trifuse_serve", "trifuse_testkit"]
DERIVED = {"Clone", "Copy", "Debug", "Default", "Eq", "Hash", "Ord", "PartialEq", "PartialOrd", "StructuralPartialEq"}
# Where the declarations of an item end: what follows is the same of all types, or another type's.
END = re.compile(r'<h2 id="(?:synthetic-implementations|blanket-implementations|deref-methods[^"]*|implementors|aliased-type)"')
TRAITS = re.compile(r'<h2 id="(?:trait-implementations|foreign-impls)"')
DECLARATION = re.compile(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', re.S)
# An associated item, a variant or an implementation, with its header; or a field.
PART = re.compile(
    r'<section id="(?P<id>[^"]+)" class="(?P<kind>[^"]+)">(?:(?!<section).)*?<h[34] class="code-header">(?P<header>.*?)</h[34]>'
    r'|<span id="(?P<field>structfield\.\w+|variant\.\w+\.field\.\w+)"[^>]*>(?:(?!<code>).)*<code>(?P<type>.*?)</code>',
    re.S,
)
LISTED = re.compile(r'<dt[^>]*><a class="(?P<kind>\w+)" href="(?P<page>[^"]+)"[^>]*>(?P<name>.*?)</a>|<dt[^>]*><code>(?P<reexport>pub use .*?)</code>', re.S)


def words(markup):
    """What a reader sees of `markup`, in one line."""
    markup = re.sub(r'<a [^>]*class="tooltip".*?</a>|<div class="code-attribute">(?!#\[non_exhaustive\]).*?</div>', "", markup, flags=re.S)
    markup = re.sub(r"<(?=/?div)", " <", markup)
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", markup))).strip()
    return re.sub(r"([(\[]) | ?,? ([)\]])|, ?(>)|,$", r"\1\2\3", text)


def declared(kind, text):
    """The declaration without what has lines of its own: fields, variants, and items of a trait."""
    if kind == "constant":
        return text.split(" = ")[0].rstrip(";")
    if kind == "macro" or "{" not in text:
        return text.rstrip(";")
    private = " { /* private fields */ }" if "/* private fields */" in text else ""
    return text.split("{")[0].rstrip().rstrip(",") + private


def item(path, kind, page):
    """The lines of an item."""
    page = END.split(page)[0]
    own, *traits = TRAITS.split(page)
    found = DECLARATION.search(own)
    if not found:
        raise ValueError(f"{path}: expected a declaration on its page, found none: does this rustdoc write other pages?")
    yield f"{path}: {declared(kind, words(found[1]))}"
    if kind == "type":
        return
    bounds = ""
    for part in PART.finditer(own[found.end() :]):
        if part["field"]:
            yield f"{path}::{part['field'].replace('.field.', '::').split('.')[-1]}: {words(part['type']).split(': ', 1)[-1]}"
            continue
        group, _, name = part["id"].partition(".")
        header = words(part["header"])
        if part["kind"] == "impl":
            bounds = f" of {header}" if header.startswith("impl<") else ""
        elif group == "associatedconstant":
            yield f"{path}::{name}: {header.split(' = ')[0]}{bounds}"
        else:
            required = {"tymethod": "required ", "variant": "variant "}.get(group, "")
            # The same name in several implementations has a number behind it.
            yield f"{path}::{re.sub('-[0-9]+$', '', name)}: {required}{header}{bounds}"
    for section in traits:
        for part in PART.finditer(section):
            header = words(part["header"] or "")
            if part["kind"] == "impl":
                bounds = "" if re.sub(r"^impl(<.*?>)? ", "", header).split(" for ")[0].split("<")[0] in DERIVED else header
                if bounds:
                    yield f"{path}: {header}"
            elif part["id"] and part["id"].startswith("associatedtype.") and bounds:
                yield f"{path}: {bounds}: {header}"


def module(path, page):
    """The lines of a module and of what it lists."""
    yield f"{path}: mod"
    text = page.read_text(encoding="utf-8")
    for listed in LISTED.finditer(text):
        if listed["reexport"]:
            used = words(listed["reexport"]).rstrip(";")
            yield f"{path}::{re.split(' as |::', used)[-1]}: {used}"
            continue
        below, name = page.parent / listed["page"], f"{path}::{words(listed['name'])}"
        if listed["kind"] == "mod":
            yield from module(name, below)
        else:
            yield from item(name, listed["kind"], below.read_text(encoding="utf-8"))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, crates = Path(sys.argv[1]), sys.argv[2:] or CRATES
    lines = set()
    for crate in crates:
        first = folder / crate / "index.html"
        if not first.is_file():
            sys.exit(f"{first}: expected the pages of {crate}, found none: cargo doc --all-features --no-deps")
        lines.update(module(crate, first))
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
