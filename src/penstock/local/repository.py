"""Which Maven repository jars come from when the user names none: the one that Spark itself resolves packages from.

Spark resolves `spark.jars.packages` with Apache Ivy, and Ivy has the address of the public repository as a constant of
a class. It is read from there, so that both always agree.
"""

from __future__ import annotations

import re
import zipfile
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError

RESOLVER = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
# The layout of Maven 2, which its other address has not. A class file holds its strings as plain bytes.
ROOT = re.compile(rb"https://[\w.:/-]+/maven2/")


def default_root() -> str:
    """The base address of the public Maven repository, ending in a slash."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("pyspark/jars")
    for jar in sorted(folder.glob("ivy-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            root = ROOT.search(archive.read(RESOLVER))
        if root:
            return root.group().decode()
    raise PenstockError(
        "Cannot tell which Maven repository to fetch jars from: Spark's own Ivy jar is missing or names none",
        where=str(folder),
        next="set PENSTOCK_MIRROR to the base address of a Maven repository, or reinstall pyspark",
    )
