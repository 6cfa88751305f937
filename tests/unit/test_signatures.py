"""What editors show: a signature that is written down more than once is the same each time, and has a docstring."""

import ast
from pathlib import Path

import pytest

import fenced_locks

PACKAGE = Path(fenced_locks.__file__).parent


def functions(module, of_class=None):
    tree = ast.parse((PACKAGE / module).read_text())
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == of_class] or [tree]
    return [node for node in inside[0].body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_overload(function):
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in function.decorator_list)


def defaults(function):
    return {
        argument.arg: (ast.unparse(argument.annotation), default and ast.unparse(default))
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    }


@pytest.mark.parametrize("name", ["fenced_lock", "afenced_lock"])
def test_overloads_show_the_defaults_of_the_function(name):
    *overloads, function = [one for one in functions("shortcuts.py") if one.name == name]
    assert len(overloads) == 2
    assert all(map(is_overload, overloads))
    for overload in overloads:
        assert defaults(overload) == defaults(function)
        # Else editors would show this one in place of the function's.
        assert ast.get_docstring(overload) is None
    assert ast.get_docstring(function)


def test_managers_are_typed_as_the_querysets_whose_methods_they_have():
    shown = {one.name: one for one in functions("managers.py", "FencedManager") if "fenced_" in one.name}
    methods = {one.name: one for one in functions("querysets.py", "FencedQuerySet") if "fenced_" in one.name}
    assert set(shown) == {name for name in methods if not name.startswith("_") and "delete" not in name}
    for name, typed in shown.items():
        assert ast.unparse(typed.args) == ast.unparse(methods[name].args)
        assert ast.unparse(typed.returns) == ast.unparse(methods[name].returns)
        assert ast.get_docstring(typed)
