"""What an emitted file has of autograd: one function for all calls that record gradients."""

from __future__ import annotations

RECORDED = '''
def _fusewright_records(model, /, *args, **kwargs):
    """Whether a call records gradients."""
    if not torch.is_grad_enabled():
        return False
    for module in model.modules():
        if any(p is not None and p.requires_grad for p in module._parameters.values()):
            return True
    given, _ = torch.utils._pytree.tree_flatten((args, kwargs))
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)


class _FusewrightRecorded(torch.autograd.Function):
    """A call with kernels, which leaves what its derivative reads."""

    @staticmethod
    def forward(ctx, steps, model, inputs, given, *leaves):
        made = steps["forward"](*given)
        results, left = made[: steps["results"]], made[steps["results"] :]
        ctx.steps, ctx.model, ctx.inputs = steps, model, len(inputs)
        ctx.parameters = [(p, p._version) for p, k in zip(leaves, steps["leaves"]) if k is None]
        ctx.save_for_backward(*inputs, *left)
        if len(results) > len(steps["differentiable"]):
            fixed = [r for k, r in enumerate(results) if k not in steps["differentiable"]]
            ctx.mark_non_differentiable(*fixed)
        if not any([r._is_view() for r in results]):
            return results
        # A view from here could not be changed in place. What backward reads must see changes.
        kept = {t.untyped_storage().data_ptr() for t in left}
        return tuple(
            r.data if r._is_view() and r.untyped_storage().data_ptr() not in kept else r
            for r in results
        )

    @staticmethod
    def backward(ctx, *gradients):
        steps, wanted = ctx.steps, ctx.needs_input_grad[4:]
        given = [gradients[k] for k in steps["differentiable"]]
        _, *others = _FUSEWRIGHT_LOOKING_ON  # autocast does in backward what it does to PyTorch's
        if torch.is_grad_enabled() or any([looks_on() for looks_on in others]):
            return None, None, None, None, *_fusewright_derivative(ctx, given, wanted)
        left = ctx.saved_tensors[ctx.inputs :]
        for of, backward in steps["backward"]:
            if sum(wanted) == sum([wanted[k] for k in of]):  # all that are wanted are among these
                found = [None] * len(wanted)
                for k, gradient in zip(of, backward(*left, *given)):
                    found[k] = gradient
                return None, None, None, None, *found
        raise AssertionError("the last has the gradients of all")


# Without what PyTorch asks for function transforms, which the guard has refused.
_fusewright_apply = super(torch.autograd.Function, _FusewrightRecorded).apply


def _fusewright_derivative(ctx, gradients, wanted):
    """The gradients as the original has them, of which there are derivatives."""
    steps, inputs = ctx.steps, ctx.saved_tensors[: ctx.inputs]
    if steps["original"] is None:
        raise RuntimeError(
            f"{steps['own']} is asked for a derivative of its derivative (create_graph=True), or "
            "while a mode or a transform looks on. Its original forward would have to run again "
            "for that, but it changes buffers or draws random numbers. Call `reference_forward`."
        )
    why = _fusewright_no("a derivative of its derivative is asked for")
    _fusewright_refused(ctx.model, steps["own"], why)
    if any(p._version != version for p, version in ctx.parameters):
        raise RuntimeError(
            f"A parameter of {steps['own']} has been changed in place since its forward, and a "
            "derivative of its derivative is asked for."
        )
    parameters = iter(p for p, _ in ctx.parameters)
    leaves = [next(parameters) if k is None else inputs[k] for k in steps["leaves"]]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(gradients[0].device.type, enabled=False):
        results = steps["original"](ctx.model, *inputs)
        found = torch.autograd.grad(
            [results[k] for k in steps["differentiable"]],
            [leaf for leaf, one in zip(leaves, wanted) if one],
            gradients,
            create_graph=create_graph,
            allow_unused=True,
        )
    found = iter(found)
    return [next(found) if one else None for one in wanted]
'''
