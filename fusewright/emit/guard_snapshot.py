"""How an emitted file asks a model for what its kernels were written for, as Python text.

All of it is looked at once, by `_fusewright_look`. The very objects that it saw are kept with the
model, and as long as all of them are the same, so is the answer: `still` in
devicelib/python/calls.h finds that out, and gives the model's tensors. What may change within an
object is asked for otherwise: tensors by `_fusewright_guard_hit`, lists and dicts every time.

A snapshot keeps neither modules nor tensors alive. It knows them by their addresses, and by weak
references, which empty it when one dies, so no address means another object. The model's own
dictionary is not in it either, so that no cycle keeps the model.
"""

from __future__ import annotations

# The last lines of `_fusewright_look` have the fields of a snapshot in the order in which `still`
# reads them. None stands for the model's own dictionary; a name without a value must not be there.
_LOOK = '''
class _FusewrightLooked(list):
    """What `_fusewright_look` saw in a model; a copy of the model looks for itself."""

    def __reduce__(self):
        return list, ()


def _fusewright_same(module, path, asked):
    """Whether an attribute is what the kernels were written for; 1, 1.0 and True are three."""
    for name in path.split("."):
        module = getattr(module, name, NotImplemented)
    if type(asked) is tuple and asked[:1] == ("as text",):
        return getattr(module, "__qualname__", repr(module)) == asked[1]
    return module is asked or (type(module) is type(asked) and repr(module) == repr(asked))


def _fusewright_has_strides(tensor):
    """Whether it is a tensor that PyTorch's test may see, as `_fusewright_guard_hit` has it."""
    plain = isinstance(tensor, torch.Tensor) and not tensor.is_nested
    return plain and tensor.layout is torch.strided


def _fusewright_other(model, path):
    """The reason for what `_fusewright_look` names."""
    place, _, name = path.rpartition(".")
    if isinstance(path, _FusewrightReason):
        return path
    if name != "training":
        return _fusewright_no(f"{path} is not what it was")
    training = model.get_submodule(place).training
    flag = f"training flag of {place}" if place else "its training flag"
    mode, advice = "eval" if training else "train", " (fusewright optimize --mode)"
    return _fusewright_no(f"{flag} is {training}, and these kernels are for {mode} mode{advice}")


def _fusewright_packed(numbers):
    """As C++ has an array of them."""
    import struct

    return struct.pack(f"{len(numbers)}q", *numbers)


def _fusewright_rows(modules, facts, keys, empty, tensors):
    """Addresses of what a snapshot keeps, as C++ compares them; 0 stands for None as a place, and
    for what is not there."""

    def place(where):
        return 0 if where is None else id(where)

    yield [n for at, name, child, *of in modules for n in (id(at), id(name), child, *map(id, of))]
    known = [(place(at), id(name), *map(id, of)) for at, name, *of in facts]
    yield [n for row in known for n in (*row, 0)[:3]]
    behind = [(id(at), [*map(id, names), 0]) for at, names in keys]
    pairs = [(0 if k else at, name) for at, names in behind for k, name in enumerate(names)]
    yield [n for pair in pairs for n in pair]
    yield [*map(id, empty)]
    yield [n for at, name, tensor in tensors for n in (place(at), id(name), tensor)]


def _fusewright_look(model, table, device=None):
    """The tensors of a model that is as its table says; or the name of what is not.

    What it saw is kept with the model. Given a device, it looks at the tensors, too.
    """
    import weakref

    found, modules, facts, keys, tensors, odd = {}, [], [], [], [], []
    hooks, every = ("_forward_hooks", "_forward_pre_hooks"), torch.nn.modules.module
    empty = [getattr(every, f"_global{name}") for name in hooks if model._modules]
    if any(empty):
        return "hooks of all modules"
    rows = table()
    waiting = [("", model, next(iter(rows)))]
    while waiting:
        path, module, row = waiting.pop()
        if type(row) is not str:  # no module, or one that is elsewhere, too
            if module is not (row and found[row[0]]):
                return path
            continue
        row, kind, at = rows[row], type(module), path and f"{path}."
        if row["class"] is not kind and row["class"] != str(kind):
            return f"{at}__class__"
        found[path], own = module, module.__dict__
        place, mine = (own, hooks) if path else (None, ())
        methods = [*row.get("methods", ()), *["forward"] * bool(path)]
        wrong = [name for name in methods if name in own] + [name for name in mine if own[name]]
        empty += [own[name] for name in mine]
        registries = "_parameters", "_buffers", "_modules"
        plain = kind.__getattribute__ is object.__getattribute__
        facts += [(place, name, own[name]) for name in (*registries, *mine)]
        facts += [(place, name) for name in methods]
        for name, asked in row.get("tensors", {}).items():
            facts += [(place, name)] * (name not in own)
            places = [own[p] for p in registries if name in own[p]]
            where = place if name in own else (places or [{}])[0]
            tensor = found[at + name] = (own if where is None else where).get(name)
            if type(asked) is str:
                facts.append((where, name, tensor))
                fits = tensor is found[asked]
            else:
                tensors.append((where, name, tensor))
                shape, dtype, *order = asked
                laid = shape, dtype, device, *order
                fits = device is None or _fusewright_tensor_matches(at + name, tensor, *laid)
                if isinstance(fits, _FusewrightReason):
                    return fits
            wrong += [name] * (not (fits and _fusewright_has_strides(tensor)))
        for name, asked in row.get("values", {}).items():
            wrong += [name] * (not _fusewright_same(module, name, asked))
            its_own = plain and name in own and not hasattr(kind, name)
            if its_own and not {"[", "{"} & {*repr(own[name])}:
                facts.append((place, name, own[name]))
            else:
                odd.append((weakref.ref(module), name, asked))
        inside, children = row.get("modules", {}), own["_modules"]
        keys.append((children, [*children]))
        wrong += ["_modules"] * ([*children] != [*inside])
        if wrong:
            return f"{at}{wrong[0]}"
        for name in reversed([*inside]):
            child = children[name]
            waiting.append((at + name, child, inside[name]))
            if child is None:
                facts.append((children, name, None))
            else:
                modules.append((children, name, id(child), type(child), child.__dict__))
    again = [lambda: all(_fusewright_same(one(), name, asked) for one, name, asked in odd)]
    looked = _FusewrightLooked()
    kept = weakref.ref(looked)

    def forget(_):
        (kept() or []).clear()

    alive = [weakref.ref(one, forget) for path, one in found.items() if path]
    named = [(where, name, id(tensor)) for where, name, tensor in tensors]
    kept_alive = modules, facts, keys, empty, named
    rows = *map(_fusewright_packed, _fusewright_rows(*kept_alive)), tuple(again * bool(odd))
    looked.append((table, type(model), *rows, alive, kept_alive))
    model.__dict__["_fusewright_looked"] = looked
    return tuple(tensor for _, _, tensor in tensors)
'''
# Before the kernels are built.
LOOK = f"""{_LOOK}

_fusewright_state = _fusewright_look  # until C++ compares with what that saw
"""
# For files that have no kernels.
LOOK_IN_PYTHON = f'''{_LOOK}

def _fusewright_state(model, table):
    """As `_fusewright_look`, which is asked where something is not the very same as it was."""
    own = model.__dict__

    def found(where, name, *_):
        return (own if where is None else where).get(name, NotImplemented)

    def same(where, name, value=NotImplemented):
        return found(where, name) is value

    def same_module(where, name, address, kind, inside):
        child = found(where, name)
        return id(child) == address and type(child) is kind and child.__dict__ is inside

    for saw in tuple(own.get("_fusewright_looked", ())):
        of, kind, *_, again, _, (modules, facts, keys, empty, tensors) = saw
        state = tuple(found(*one) for one in tensors)
        if (
            of is table
            and type(model) is kind
            and all(same_module(*one) for one in modules)
            and all(same(*one) for one in facts)
            and all([*where] == names for where, names in keys)
            and not any(empty)
            and all(ask() for ask in again)
            and [*map(id, state)] == [address for _, _, address in tensors]
        ):
            return state
    return _fusewright_look(model, table)
'''
