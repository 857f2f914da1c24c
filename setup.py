"""Builds the compiled kernel where Cython and a compiler are at hand; without them the package is plain Python.

Everything else about the package is said in pyproject.toml. KAPPAMQ_KERNEL=python skips the build; CFLAGS and LDFLAGS
are honoured, which is how the sanitizer build is made.
"""

import os

from setuptools import Extension, setup

MODULES = (
    "kernel._compiled",
    "kernel._columns",
    "kernel._client",
    "kernel._verify",
    "net._sockets",
    "store._preloading",
    "store._syncing",
)


def extensions() -> list[Extension]:
    if os.environ.get("KAPPAMQ_KERNEL") == "python":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    kernel = [
        Extension(
            f"kappamq.{name}",
            [f"src/kappamq/{name.replace('.', '/')}.pyx"],
            include_dirs=["src/kappamq/kernel"],
            extra_compile_args=["-O2", "-g0"],
        )
        for name in MODULES
    ]
    built: list[Extension] = cythonize(kernel, language_level=3, quiet=True, build_dir="build/cython")
    for extension in built:
        # A build that fails is reported, and the installation goes on without the extension. Set here, as cythonize
        # does not pass it on.
        extension.optional = True
    return built


setup(ext_modules=extensions())
