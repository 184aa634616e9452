"""Builds wheels and releases; above all the compiled build, in which the modules on a call's path are machine code
compiled from the same sources.

program      modules to compile, which parts of them can be C, and what each name in them refers to
c_types      C types of annotations
attributes   attributes of a class's instances
declare      Cython's declarations beside a module (.pxd)
rewrite      the module as Cython reads it, with the same lines
build        compiles sources to a package under build/, in parallel, and only what has changed
training     load for the instrumented build (gcc's profile)
release      builds and tries a release; with changelog (the next version) and sbom
launcher     the command `llm-guard`, in the wheel outside the package
hook         the wheel that `make compiled` leaves in dist/
"""
