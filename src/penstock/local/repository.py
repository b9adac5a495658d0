"""The default Maven repository of the jars: the repository from which Spark itself resolves packages.

Spark resolves `spark.jars.packages` with Apache Ivy, and a class of Ivy has the address of the public repository as a
constant. It is read from there, so that both are always the same.
"""

from __future__ import annotations

import re
import zipfile
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError

RESOLVER = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
# The class has another address, which is not of Maven 2's layout. A class file has its strings as plain bytes.
ROOT = re.compile(rb"https://[\w.:/-]+/maven2/")


def default_root() -> str:
    """The base address of the public Maven repository, with a slash at its end; raises PenstockError if not found."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("pyspark/jars")
    for jar in sorted(folder.glob("ivy-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            root = ROOT.search(archive.read(RESOLVER))
        if root:
            return root.group().decode()
    raise PenstockError(
        "No Maven repository to fetch jars from: Spark's own Ivy jar is missing or contains no address",
        where=str(folder),
        next="set PENSTOCK_MIRROR to the base address of a Maven repository, or reinstall pyspark",
    )
