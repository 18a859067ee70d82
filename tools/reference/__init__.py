"""Writes the reference, `docs/reference/`, from what it describes: the keys of the model, the commands, the classes of
events and errors, the metrics, the names that a program can import.

    python -m tools.reference           write all pages
    python -m tools.reference --check   exit 1 if one is not what the code says

Each page is made as a whole, so nothing in it is written by hand and nothing can be forgotten: what the code does not
explain (a field without a comment, a code without a class) is an assertion here. A page is Markdown that reads well in
the repository as well as on the site, and each thing has a heading, so that the site's search finds it by its name.
Rejected: a generator that runs when the site is built, because the pages would not be in the repository.
"""
