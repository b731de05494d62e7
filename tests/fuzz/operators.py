"""What random problems draw beside maps, reductions and views: operators as lines of text.

`{x}` is an old value of shape s, `{y}` another one of its shape, `{i}` an input, `{d}` one of x's
dimensions, `{k}` a number from 1 to 3, `{t}` its type; `P(sizes)` is a new parameter. What PyTorch
refuses for a shape is not drawn there. Answers that jump are asked of inputs only, which nobody
rounds; NaN does not become an integer, since nobody says which.
"""

from __future__ import annotations

MOVES = (
    *("{x}.flip({d})", "{x}.roll({k}, {d})", "{x}.roll(-1)", "F.pad({x}, ({k}, 1))"),
    *("F.pad({x}, (1, {k}), value=0.5)", "F.pad({x}, ({k}, 0), mode='replicate')"),
    *("F.pad({x}, (1, {k}), mode='reflect')", "F.pad({x}, ({k}, 1), mode='circular')"),
    *("F.pad({x}, (-1, 2, 0, {k}))", "torch.tril({x}, {k})", "torch.triu({x})"),
    *("{x}.unfold({d}, 2, {k})", "{x}.repeat_interleave(2, {d})", "{x}.transpose({d}, -1)"),
    *("{x}.transpose({d}, -1).contiguous()", "{x}.select({d}, 0)", "{x}[..., ::2]", "{x}[{k}:]"),
    *("{x}.diagonal(dim1={d}, dim2=-1)", "{x}.movedim(0, -1)", "{x}.chunk(2, {d})[-1]"),
    *("{x}.squeeze()", "torch.cat([{x}, {y}], {d})", "torch.stack([{x}, {y}], {d})"),
    *("torch.cat([{x}, torch.tanh({x}), {y}.abs()], {d})", "torch.cat([{x}, {x}.flip({d})], {d})"),
    *("{x}.reshape(-1)", "{x}.mT.reshape(-1, s[0])", "{x}.expand({k}, *s)", "{x}.clone().mT"),
    *("F.pixel_shuffle({x}, 2)", "{x}.swapaxes({d}, 0) * {x}.swapaxes({d}, 0)"),
    *("{x}.index_select({d}, torch.tensor([0]).to({x}.device))", "torch.rot90({x})"),
)
SCANS = (
    *("{x}.cumsum({d}) * 0.1", "torch.cumprod(torch.tanh({x}), {d})", "{x}.cumsum({d}) - {x}"),
    *("{x}.flip({d}).cumsum({d}).flip({d})", "{x}.softmax({d}).cumsum({d})"),
    *("({x} - {x}.mean({d}, keepdim=True)).cumsum({d})",),
)
REDUCTIONS = (
    *("{x}.std({d})", "{x}.var({d}, unbiased=False)", "torch.linalg.vector_norm({x}, 1, {d})"),
    *("torch.tanh({x}).prod({d})", "{x}.max({d})[0]", "{x}.min({d}, keepdim=True).values"),
    *("F.normalize({x}, dim={d})", "torch.var_mean({x}, {d})[1]", "{x}.logsumexp({d})"),
    *("({i} > 0).any({d}).to({t})", "({i} > 0).sum({d}).to({t})", "{x}.median({d})[0]"),
    *("{x}.softmax({d}).amax({d})", "{x}.sum()", "{x}.mean() + {x}", "{x}.aminmax(dim={d})[1]"),
    *("torch.linalg.vector_norm({x}, float('inf'), {d})", "{x}.square().sum({d}).sqrt()"),
    *("({x} - {x}.amax({d}, keepdim=True)).exp().sum({d})", "{x}.topk(1, {d})[0]"),
    *(
        "{x}.sort({d})[0] + 1",
        "{i}.argmax({d}).to({t})",
        "{i}.argmin().to({t})",
        "F.softmin({x}, {d})",
    ),
)
CHOICES = (
    *(
        "torch.where({i} > 0, {i}, 1.0)",
        "{i}.sign()",
        "({i} * 3).floor()",
        "({i} > 0).to({t}) * {i}",
    ),
    *("((({i} > 0).to(torch.int32) * 3 + ({i} > 1)) % 2).to({t})", "{i}.round() * 0.5"),
    *(
        "torch.logical_and({i} > 0, {i} < 1).to({t})",
        "(({i} > 0) ^ ({i} > 1)).to(torch.uint8) * {i}",
    ),
    *("(torch.arange(s[-1], device={x}.device) % 3).to({t}) * {x}", "{x} * {x}.new_ones(s[-1])"),
    *("{x}.masked_fill(torch.ones_like({x}).tril() > 0, 0.25)", "torch.nan_to_num({x})"),
    *("torch.clamp({x}, {y}.abs().neg(), {y}.abs())", "{x}.half().to({t})", "{x}.double().to({t})"),
    *("F.prelu({x}, P(1))", "F.glu({x}, {d})", "F.hardtanh({x}, -0.5, 0.5)", "F.selu({x})"),
    *("F.threshold({x}, 0.1, 0.2)", "F.relu6({x} * 4)", "F.logsigmoid({x})", "F.softsign({x})"),
)
PRODUCTS = (
    *("F.linear({x}, P(7, s[-1]) * 0.2, P(7))", "torch.einsum('...i,ij->...j', {x}, P(s[-1], 5))"),
    *("torch.einsum('ij,kj->ki', {x}, {y}) * 0.2", "torch.addmm(P(6), {x}, P(s[-1], 6) * 0.2)"),
    *("torch.baddbmm({x}, P(s[0], s[1], 3), P(s[0], 3, s[2]), beta=0.5)", "({x} @ {y}.mT) * 0.2"),
    *("torch.matmul({x}.mT, {y}).relu()", "torch.matmul({x}, P(s[-1]))", "F.linear({x}, P(s[-1]))"),
    *("torch.bmm({x}, {y}.mT).softmax(-1)", "torch.matmul(P(9, s[-2]), {x}).mT"),
    *("(({x} @ {y}.mT) * 0.3).softmax(-1) @ {x}", "F.layer_norm({x} @ P(s[-1], 16), (16,))"),
    *("F.scaled_dot_product_attention({x}, {y}, {x})", "F.bilinear({x}, {y}, P(3, s[-1], s[-1]))"),
)
CONVOLUTIONS = (
    *(
        "F.conv1d({x}, P(4, s[-2], 3) * 0.3, P(4), padding=1).relu()",
        "F.conv1d({x}, P(2, s[-2], 2))",
    ),
    *(
        "F.conv2d({x}, P(6, s[-3], 3, 3) * 0.2, None, 2, 1)",
        "F.conv2d({x}, P(5, s[-3], 1, 1), P(5))",
    ),
    *("F.conv2d({x}, P(s[-3], 1, 3, 3), P(s[-3]), 1, 2, 2, s[-3]).tanh()",),
    *("F.conv2d({x}, P(3, s[-3], 2, 3) * 0.3, None, (1, 2), (1, 0)) + 1",),
    *("F.conv3d({x}, P(3, s[-4], 2, 2, 2) * 0.3, P(3)).sigmoid()",),
    *("F.conv_transpose1d({x}, P(s[-2], 3, 4) * 0.3, None, 2).relu()",),
    *("F.conv_transpose2d({x}, P(s[-3], 4, 3, 3) * 0.2, P(4), 2, 1, 1).clamp(-1, 1)",),
    *("F.conv_transpose2d({x}, P(s[-3], 2, 2, 2) * 0.3, None, 1, 0, 0, 1, 2)",),
    *("F.conv_transpose3d({x}, P(s[-4], 2, 3, 3, 3) * 0.2, None, 2)",),
)
POOLS = (
    *(
        "F.max_pool2d({x}, 2, 2, ceil_mode=True)",
        "F.max_pool2d({x}, 3, 1, 1)",
        "F.max_pool1d({x}, 2)",
    ),
    *("F.max_pool2d({x}, 2, 1, 0, 2)", "F.avg_pool2d({x}, 3, 2, 1, True, False)"),
    *("F.avg_pool2d({x}, 2, ceil_mode=True, divisor_override=3)", "F.avg_pool1d({x}, 3, 1, 1)"),
    *("F.max_pool3d({x}, 2, 1)", "F.avg_pool3d({x}, 2, 2, 1)", "F.adaptive_avg_pool2d({x}, 1)"),
    *(
        "F.adaptive_avg_pool2d({x}, (2, 3))",
        "F.adaptive_max_pool2d({x}, 1)",
        "F.adaptive_avg_pool1d({x}, 2)",
    ),
    *("F.interpolate({x}, scale_factor=2)", "F.interpolate({x}, size=7, mode='linear')"),
    *(
        "F.max_pool2d({x}, (1, 2), (2, 1)) + 1",
        "F.avg_pool2d({x}, 3, 1, 1, count_include_pad=True)",
    ),
)
NORMS = (
    *("F.instance_norm({x}, eps=1e-2)", "F.group_norm({x}, 1, P(s[1]), P(s[1]))"),
    *("F.batch_norm({x}, P(s[1]), P(s[1]).abs(), eps=0.1)", "F.local_response_norm({x}, 3)"),
    *("F.batch_norm({x}.contiguous(), None, None, P(s[1]), P(s[1]), True, eps=0.1)",),
    *(
        "F.rms_norm({x}, (s[-1],), P(s[-1]), 1e-2)",
        "F.layer_norm({x}, s[1:], P(*s[1:]), P(*s[1:]))",
    ),
    *("{x} / {x}.norm(dim={d}, keepdim=True).clamp_min(0.1)", "{x} / {x}.abs().sum().clamp_min(1)"),
)
LOSSES = (
    *("F.mse_loss({x}, {y})", "F.l1_loss({x}, {y})", "F.smooth_l1_loss({x}, {y}, reduction='sum')"),
    *("F.huber_loss({x}, torch.tanh({x}), delta=0.5)", "F.cross_entropy({x}, {y}.softmax(-1))"),
    *("F.kl_div({x}.log_softmax(-1), {y}.softmax(-1), reduction='batchmean')",),
    *(
        "F.binary_cross_entropy_with_logits({x}, {y}.sigmoid())",
        "F.gaussian_nll_loss({x}, {y}, {y}.abs() + 0.5)",
    ),
    *("F.cosine_similarity({x}, {y}, dim={d})", "F.mse_loss({x}, {y}, reduction='none').mean({d})"),
    *(
        "F.hinge_embedding_loss({x}, torch.ones_like({x}))",
        "F.poisson_nll_loss({x}.clamp(-2, 2), {y}.abs())",
    ),
    *("F.triplet_margin_loss({x}, {y}, {x} + 0.5)", "(1 - {x} * {y}).clamp_min(0).mean()"),
)
KINDS = (
    *(MOVES, MOVES, SCANS, REDUCTIONS, REDUCTIONS, CHOICES),
    *(PRODUCTS, CONVOLUTIONS, POOLS, NORMS, LOSSES),
)
# What happens in place to a fresh copy.
CHANGES = (
    *(".add_(1)", ".relu_()", "[..., 1:].mul_(3)", ".select(0, 0).zero_()", "[:1].copy_({x}[-1:])"),
    *(
        ".mT.mul_(0.5)",
        ".clamp_(-0.5, 0.5)",
        ".view(-1)[::2].neg_()",
        ".sub_({x})",
        ".copy_({x}.sin())",
    ),
)
