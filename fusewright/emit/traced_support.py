"""What an emitted file has for PyTorch's compiler, as Python text: operators of PyTorch's that run
the steps of its classes, and what is traced where one is called (`traced_operator`).

It is for versions of PyTorch whose compiler was seen to trace it. All of it is plain Python until
the compiler traces; only the operators are made known when the file is imported, so that a saved
program finds them.
"""

from __future__ import annotations

TRACED = '''
# Versions of PyTorch whose compiler is known to trace what is written for it here.
_FUSEWRIGHT_TRACES = torch.__version__ >= "2.11" and torch.__version__ < "2.16.dev0"


def _fusewright_strides(shape, order=None):
    """Those of a tensor without gaps whose dimensions lie in this order in memory."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order or range(len(shape))):
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def _fusewright_blank(like, device):
    """A tensor without values."""
    shape, dtype, *order = like
    strides = _fusewright_strides(shape, *order)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _fusewright_lies(tensor, shape, order=None):
    """Whether a tensor has these sizes, and no gaps. PyTorch's compiler can trace this."""
    if tensor.shape != torch.Size(shape):
        return False
    strides = _fusewright_strides(shape, order)
    return all(tensor.size(d) == 1 or tensor.stride(d) == strides[d] for d in range(len(shape)))


def _fusewright_in_graph(model, name, mode, original, sizes, tensors, holds=True):
    """What the operator with the steps of `forward` returns, in a graph of PyTorch's compiler;
    nothing where the original has to be in it.

    torch.compile traces the original, too, and drops it as nobody reads its results: so it knows
    when to trace again. All that is read here it asks for at each call, too.
    """
    if not _FUSEWRIGHT_TRACES:
        _fusewright_traced(name)
        return ()
    takes, _ = getattr(model, f"fusewright_tensors{mode}")(*sizes)
    dynamo, every = torch.compiler.is_dynamo_compiling(), torch.nn.modules.module
    why = "" if holds and all(sizes) else "arguments are others, or built otherwise"
    for tensor, path in zip(tensors, takes, strict=True):
        shape, _, *order = takes[path]
        plain = type(tensor) in _FUSEWRIGHT_PLAIN if dynamo else isinstance(tensor, torch.Tensor)
        if not plain:
            why = why or f"{path} is no plain tensor"
        elif tensor.layout is not torch.strided or tensor.is_nested:
            why = why or f"layout of {path}"
        elif not _fusewright_lies(tensor, shape, *order):
            why = why or f"shape of {path}, or its order in memory"
    modes = torch._C._len_torch_function_stack() if dynamo else 0
    if modes > (torch.utils._device.CURRENT_DEVICE is not None):  # its own is none that matters
        why = why or "another mode looks on"
    if why:
        _fusewright_traced(name, why)
        return ()
    given = [(t.dtype, str(t.device), t.requires_grad) for t in tensors] if dynamo else tensors
    operator, like, paths = model.fusewright_operator(mode, *given)
    if not operator:
        return ()
    if not torch.compiler._is_exporting_flag:
        hooks = every._global_forward_hooks, every._global_forward_pre_hooks
        any(map(len, (*hooks, *model._fusewright_hooks)))
        original()
    state = []
    for path in paths:
        found = model
        for part in path:
            found = getattr(found, part)
        state.append(found)
    return getattr(torch.ops.fusewright, operator)(sizes, like, [*tensors, *state])


class _FusewrightAnswered(Exception):
    """The guard of a `forward` holds, or not, and no more of it is to run."""


def _fusewright_ask(model, kind, mode, given, call):
    """What the guard of `forward` says of a model, and its local names; asked by its own code.

    given: the tensors among the arguments, or what they are like, where PyTorch traces Python.
    """
    import collections
    import contextlib
    import sys

    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    exporting, answers = isinstance(given[0], torch.Tensor), []
    alone = (_fusewright_exporting if exporting else _fusewright_eager)()
    if not alone:
        return alone, {}

    def answer(*why):
        answers.append((why[-1] if why else True, dict(sys._getframe(1).f_locals)))
        raise _FusewrightAnswered

    def matches(*like, **order):
        plain = *_FUSEWRIGHT_PLAIN, FakeTensor
        return _fusewright_tensor_matches(*like, **order, plain=plain)

    takes, _ = getattr(kind, f"fusewright_tensors{mode}")()
    names = {
        "_fusewright_compiling": bool,
        "_fusewright_records": lambda *_, **__: False,
        "_fusewright_guard_hit": lambda *_: False,
        "_fusewright_again": lambda *_: (),
        "_fusewright_cache_guard": lambda *_: True,
        "_fusewright_tensor_matches": matches,
        "_fusewright_eager": lambda: True,
        "_fusewright_refused": answer,
        "_FUSEWRIGHT_CALLS": collections.defaultdict(answer),
    }
    if exporting:  # nothing can be tried while it traces
        names["_fusewright_conv_uses_tf32"] = lambda *_, **__: False
    else:
        told, given = given, []
        with FakeTensorMode():
            for like, (dtype, device, needed) in zip(takes.values(), told, strict=True):
                blank = _fusewright_blank((like[0], dtype, *like[2:]), device)
                given.append(blank.requires_grad_(needed))
    space = {**globals(), **names}
    if look := space.get("_fusewright_look"):
        look = type(look)(look.__code__, space, None, look.__defaults__)
        space.update(_fusewright_look=look, _fusewright_state=look)
    forward = vars(kind)[f"forward{mode}"]
    asked = type(forward)(forward.__code__, space, None, forward.__defaults__)
    asked.__kwdefaults__ = forward.__kwdefaults__
    with contextlib.suppress(_FusewrightAnswered):
        asked(model, **(call(*given) if call else dict(zip(takes, given, strict=True))))
    return answers[0]


def _fusewright_operator(model, name, mode, given, call=None):
    """While PyTorch's compiler traces: the operator, what tensors of the model are like, as a short
    text, and where they are; nothing where the guard of `forward` does not hold."""
    kind, places, watched = globals()[name], {}, []
    why, local = _fusewright_ask(model, kind, mode, given, call)
    steps, found = getattr(kind, f"fusewright_steps{mode}").__code__, []
    if why:
        takes, _ = getattr(kind, f"fusewright_tensors{mode}")()
        names, some = steps.co_varnames, steps.co_argcount
        found = [local[one] for one in names[:some] if one not in takes]
        found = [one for one in found if isinstance(one, torch.Tensor)]
        found += local[names[some]] if steps.co_flags & 4 else ()
    for path, module in model.named_modules():
        at = path.split(".") if path else []
        for own in (module._parameters, module._buffers, vars(module)):
            places.update((id(tensor), (*at, last)) for last, tensor in own.items())
        watched += [module._forward_hooks, module._forward_pre_hooks] if path else []
    if not places.keys() >= {*map(id, found)}:
        why = _fusewright_no("a tensor of the model is in no module")
    if not why:
        _fusewright_traced(name, getattr(why, "what", "a condition does not hold"))
        return "", "", ()
    vars(model)["_fusewright_hooks"] = watched
    paths = tuple(places[id(one)] for one in found)
    return _FUSEWRIGHT_OPERATORS[name + mode].operator, _fusewright_likeness(found), paths


def _fusewright_exporting():
    """As `_fusewright_eager`, while torch.export traces, which has modes of its own."""
    modes = [*torch.overrides._get_current_function_mode_stack()]
    modes += torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    own = "torch._export", "torch.fx", "torch._subclasses", "torch.utils._device"
    others = [one for one in modes if not type(one).__module__.startswith(own)]
    autocast, tracing, transforms, *_ = _FUSEWRIGHT_LOOKING_ON
    derived = torch.autograd.forward_ad._current_level >= 0
    if others or autocast() or tracing() or transforms() or derived:
        return _fusewright_no("somebody looks on")
    return True


def _fusewright_flags():
    """Those that say how products of float32 are rounded."""
    if _FUSEWRIGHT_DEVICE != "cuda":
        return ()
    return tuple(torch._C._get_fp32_precision_getter("cuda", of) for of in ("matmul", "conv"))


def _fusewright_likeness(tensors):
    """What tensors of a model are like, with these flags, as a short text."""
    import hashlib

    facts = [(tuple(one.shape), one.stride(), one.dtype) for one in tensors]
    return hashlib.sha256(repr((_fusewright_flags(), facts)).encode()).hexdigest()[:16]


class _FusewrightOperator:
    """An operator of PyTorch's that runs the steps of a class.

    Where the same text runs again, the operator is there, and runs the steps of the newest class.
    """

    def __init__(self, name, mode, digest):
        self.name, self.mode, self.operator = name, mode, f"{name}{mode}_{digest}"
        if _FUSEWRIGHT_TRACES:
            known = vars(torch.ops.fusewright).setdefault("_fusewright_operators", {})
            if self.operator not in known:
                self.define(self.operator, known)
            known[self.operator] = self

    @staticmethod
    def define(name, known):
        """Make it known to PyTorch, which keeps it for as long as `library` is kept."""
        library = torch.library.Library("fusewright", "FRAGMENT")

        def gradients(sizes, like, tensors, library=library):
            if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
                raise RuntimeError(f"{name} records no gradients: call it under torch.no_grad().")
            with torch._C._AutoDispatchBelowAutograd():
                return getattr(torch.ops.fusewright, name)(sizes, like, tensors)

        tags = (torch.Tag.needs_exact_strides,)
        library.define(f"{name}(SymInt[] sizes, str like, Tensor[] tensors) -> Tensor[]", tags=tags)
        library.impl(name, lambda *given: known[name].run(*given), "CompositeExplicitAutograd")
        library.impl(name, gradients, "Autograd")
        library.impl(name, lambda *given: known[name].blank(*given), "Meta")

    def of_class(self, what):
        return getattr(globals()[self.name], f"fusewright_{what}{self.mode}")

    def blank(self, sizes, like, tensors):
        """The results without values."""
        _, gives = self.of_class("tensors")(*sizes)
        return [_fusewright_blank(one, tensors[0].device) for one in gives]

    def laid(self, tensor, like):
        """The tensor, or a copy of it that lies in memory as this says."""
        shape, dtype, *order = like
        self.expect(tensor.shape == torch.Size(shape) and tensor.dtype is dtype)
        if _fusewright_lies(tensor, shape, *order):
            return tensor
        return _fusewright_blank(like, tensor.device).copy_(tensor)

    def expect(self, holds):
        if not holds:
            raise RuntimeError(
                f"{self.operator}: its tensors, or PyTorch's flags of precision, are not what they "
                "were when PyTorch's compiler traced the model. Compile or export it again."
            )

    def run(self, sizes, like, tensors):
        """The steps, for tensors that are like those that PyTorch's compiler saw."""
        takes, gives = self.of_class("tensors")(*sizes)
        key, device = (self.operator, like, _fusewright_flags(), *sizes), tensors[0].device
        if not _fusewright_guard_hit(key, (), *tensors):
            state = tensors[len(takes) :]
            self.expect(device.type == _FUSEWRIGHT_DEVICE)
            self.expect({one.device for one in tensors} == {device})
            self.expect(_fusewright_likeness(state) == like)
            tensors = [*map(self.laid, tensors, takes.values()), *state]
            _fusewright_cache_guard(key, *tensors)
        _FUSEWRIGHT_CALLS[self.name] += 1
        where = [device.index] if device.type == "cuda" else []
        made = self.of_class("steps")(*sizes, *where, *tensors)
        made = [made] if isinstance(made, torch.Tensor) else made
        return [*map(self.laid, made, gives)]
'''
