"""How an emitted file asks a model for what its kernels were written for, as Python text.

All of it is looked at once, by `_fusewright_look`. The very objects that it saw are kept with the
model, and as long as all of them are the same, so is the answer: `state` in
devicelib/python/calls.h finds that out, and gives the model's tensors. What may change within an
object is asked for otherwise: tensors by `_fusewright_guard_hit`, lists and dicts every time.

A snapshot keeps neither modules nor tensors alive. It knows them by their addresses, and by weak
references, which empty it when one dies, so no address means another object. The model's own
dictionary is not in it either, so that no cycle keeps the model.
"""

from __future__ import annotations

# A snapshot is one tuple, whose fields `state` has in the same order.
_LOOK = '''
class _FusewrightLooked(list):
    """What `_fusewright_look` saw in a model. A copy of it is empty, and looks for itself."""

    def __reduce__(self):
        return _FusewrightLooked, ()


def _fusewright_same(module, path, asked):
    """Whether an attribute is what the kernels were written for; 1, 1.0 and True are three."""
    for name in path.split("."):
        module = getattr(module, name, NotImplemented)
    if type(asked) is tuple and asked[:1] == ("as text",):
        return getattr(module, "__qualname__", repr(module)) == asked[1]
    return module is asked or (type(module) is type(asked) and repr(module) == repr(asked))


def _fusewright_children(modules):
    """The modules in one: name, address, class, address of the dictionary."""
    return tuple(
        (name, id(child), type(child), 0 if child is None else id(child.__dict__))
        for name, child in modules.items()
    )


def _fusewright_facts(model, rows, saw, found):
    """All that has to hold for a model, the first row's: in words, and whether it does.

    Fills `saw`, where None stands for the model's own dictionary, and `found`, by path.
    """
    waiting = [("", model, next(iter(rows)))]
    while waiting:
        path, module, row = waiting.pop()
        if type(row) is not str:  # no module, or one that is also elsewhere
            yield f"{path} is the same module", module is (row and found[row[0]])
            continue
        row, kind, at = rows[row], type(module), path and f"{path}."
        yield f"{path or 'the model'} is a {row['class']}", row["class"] in (kind, str(kind))
        own = module.__dict__
        where, found[path] = own if path else None, module
        hooks = ("_forward_hooks", "_forward_pre_hooks") if path else ()
        yield f"{path} has no hooks", not any(own[name] for name in hooks)
        saw["empty"] += [own[name] for name in hooks]
        for name in ("_parameters", "_buffers", "_modules", *hooks):
            saw["values"] += [where, name, own[name]]
        users = [vars(c) for c in kind.__mro__ if c.__module__.partition(".")[0] != "torch"]
        methods = {n for c in users for n in c if isinstance(c[n], type(lambda: 0))}
        methods = {"forward" if path else "", *(n for n in methods if n[:2] != "__")}
        for name in methods if path else methods - {"forward"}:
            yield f"{at}{name} is as its class says", name not in own
            saw["absent"] += [where, name]
        for name, asked in row.get("tensors", {}).items():
            places = [own[p] for p in ("_parameters", "_buffers") if name in own[p]]
            place = where if name in own else (places or [{}])[0]
            tensor = found[at + name] = (own if place is None else place).get(name)
            if type(asked) is str:
                yield f"{at}{name} is {asked}", tensor is found[asked]
                saw["values"] += [place, name, tensor]
            else:
                yield f"{at}{name} is a tensor", isinstance(tensor, torch.Tensor)
                saw["tensors"] += [place, name, tensor]
            saw["absent"] += [where, name] if name not in own else []
        for name, asked in row.get("values", {}).items():
            yield f"{at}{name} is {asked!r}", _fusewright_same(module, name, asked)
            value = own.get(name)
            flat = value if type(value) is tuple else (value,)
            fixed = not any(isinstance(one, (list, dict, tuple)) for one in flat)
            if fixed and name in own and not hasattr(kind, name):
                saw["values"] += [where, name, value]
            else:
                saw["odd"].append((module, name, asked))
        inside, children = row.get("modules", {}), own["_modules"]
        yield f"{path or 'the model'} holds {[*inside]}", [*children] == [*inside]
        saw["modules"].append((children, _fusewright_children(children)))
        waiting += [(at + name, children[name], inside[name]) for name in reversed([*inside])]


def _fusewright_look(model, table):
    """The tensors of a model that is as its table says; or, in words, what is not so."""
    import weakref

    everywhere, found = torch.nn.modules.module, {}
    hooks = [everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks]
    saw = {name: [] for name in ("modules", "tensors", "values", "absent", "empty", "odd")}
    saw["empty"] += hooks if model._modules else []
    if any(saw["empty"]):
        return "there are no hooks for all modules"
    for fact, holds in _fusewright_facts(model, table(), saw, found):
        if not holds:
            return fact
    tensors = tuple(saw["tensors"][2::3])
    saw["tensors"][2::3] = map(id, tensors)
    odd = [(weakref.ref(module), name, asked) for module, name, asked in saw.pop("odd")]
    again = odd and (lambda: all(_fusewright_same(m(), name, asked) for m, name, asked in odd))
    looked = _FusewrightLooked()
    kept = weakref.ref(looked)

    def forget(_):
        (kept() or []).clear()

    alive = [weakref.ref(one, forget) for path, one in found.items() if path]
    looked.append((type(model), *map(tuple, saw.values()), again or None, alive))
    model.__dict__["_fusewright_looked"] = looked
    return tensors


def _fusewright_asked(rows, row=None):
    """What a table asks of tensors, in the order of `_fusewright_look`."""
    row = rows[row or next(iter(rows))]
    yield from (asked for asked in row.get("tensors", {}).values() if type(asked) is tuple)
    for inside in row.get("modules", {}).values():
        if type(inside) is str:
            yield from _fusewright_asked(rows, inside)
'''
# Before the kernels are built.
LOOK = f'''{_LOOK}

def _fusewright_state(model, table):
    """As `_fusewright_look`; C++ compares with what that saw, once it is built."""
    return _fusewright_look(model, table)
'''
# For files that have no kernels.
LOOK_IN_PYTHON = f'''{_LOOK}

def _fusewright_state(model, table):
    """As `_fusewright_look`, which is asked where something is not the very same as it was."""
    own = model.__dict__

    def found(flat, k):
        return (own if flat[k] is None else flat[k]).get(flat[k + 1], NotImplemented)

    for saw in tuple(own.get("_fusewright_looked", ())):
        kind, modules, tensors, values, absent, empty, again, _ = saw
        state = tuple(found(tensors, k) for k in range(0, len(tensors), 3))
        if (
            type(model) is kind
            and all(_fusewright_children(children) == were for children, were in modules)
            and all(found(values, k) is values[k + 2] for k in range(0, len(values), 3))
            and all(found(absent, k) is NotImplemented for k in range(0, len(absent), 2))
            and tuple(map(id, state)) == tensors[2::3]
            and not any(empty)
            and (again is None or again())
        ):
            return state
    return _fusewright_look(model, table)
'''
