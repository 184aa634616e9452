"""What a wheel is built with; above all the compiled build: the way of a call as machine code, from the one source.

program      which modules are compiled, what of them can be C, and what each name in them stands for
c_types      what an annotation means in C
attributes   what an instance of a class holds
declare      Cython's declarations beside a module (.pxd)
rewrite      the module itself, line for line, without what Cython would misread
build        from sources to a package under build/, in parallel, and only what has changed
training     what a gateway that counts where it goes is shown (gcc's profile)
release      what a release is, built and tried; with changelog (which version comes next) and sbom
launcher     the command `llm-guard`, in the wheel outside the package
hook         the wheel that `make compiled` leaves in dist/
"""
