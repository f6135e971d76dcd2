"""Stub of SGLang's GPU kernels: every name imports, every call raises NotImplementedError."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.2.post2"
__path__ = []


def _names_of(module):
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_arguments, **_options):
            raise NotImplementedError(f"{module}.{name} is not available: sgl_kernel is a stub")

        call.__name__ = name
        return call

    return attribute


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        # SGLang has a fallback for scalar_type.
        if name.startswith("sgl_kernel.") and name != "sgl_kernel.scalar_type":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = _names_of(spec.name)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Submodules())
__getattr__ = _names_of("sgl_kernel")
