# Copyright: the authors of Quadrille. SPDX-License-Identifier: MIT OR Apache-2.0
"""Spack recipe for Quadrille.

Untested: no Spack was at hand where this was written. Add the folder above as a repository, or copy this file to
var/spack/repos/builtin/packages/quadrille/package.py, and set `git` to where the sources are.
"""

from spack.package import *


class Quadrille(CargoPackage):
    """Trains convolutional networks on chips made of NUMA quadrants and on clusters."""

    homepage = "https://example.org/quadrille"
    git = "https://example.org/quadrille.git"

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Train in several processes over MPI")
    variant("hwloc", default=True, description="Read machines through hwloc")
    variant("hdf5", default=True, description="Read and write HDF5 (no library needed)")

    depends_on("rust@1.90:", type="build")
    depends_on("c", type="build")
    depends_on("mpi", when="+mpi")
    # The bindings to MPI are made from its headers.
    depends_on("llvm+clang", type="build", when="+mpi")
    depends_on("hwloc@2.3:2", when="+hwloc")

    @property
    def build_args(self):
        features = [name for name in ("mpi", "hwloc", "hdf5") if f"+{name}" in self.spec]
        return ["--no-default-features", "--features", ",".join(features)]
