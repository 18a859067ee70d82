"""The folders of the package: the heart stands at the top of the repository, all others in `src/greenroom`.

Found, not listed: a folder that was forgotten in a list was once missing in the wheel. Everything else about the
package is in `pyproject.toml`. Rejected: links in `src/greenroom`, without which a clone on a system that makes none
could not be installed.
"""

from setuptools import find_namespace_packages, setup

HEART = ("actors", "protocol", "supervisor")

setup(
    package_dir={"": "src", **{f"greenroom.{room}": room for room in HEART}},
    packages=find_namespace_packages("src", include=["greenroom", "greenroom.*"])
    + [
        f"greenroom.{folder}"
        for folder in find_namespace_packages(include=[*HEART, *(f"{room}.*" for room in HEART)])
    ],
)
