import copy, sys, time, traceback
sys.path.insert(0, "bench")
import torch
from models import entries, CPU_BATCH, CHAINS, TAILS
import fusewright
print(torch.__version__, torch.cuda.get_device_name())
for name, make in entries("gpu").items():
    try:
        torch.manual_seed(0)
        t = time.time()
        if name in CPU_BATCH:
            from models import example
            m, inp = example(name, "gpu")
        else:
            m, inp = make()
        x = [a.to("cuda") for a in inp()]
        ours = fusewright.optimize(copy.deepcopy(m), [a.cpu() for a in x], target="cuda").to("cuda")
        m = m.to("cuda")
        t1 = time.time()
        with torch.no_grad():
            y = ours(*x); e = m(*x)
            t2 = time.time()
            ready = ours._fusewright_ready(*x)
            d = None
            if x[0].numel() < 3e8 and name not in ("conv_relu_bias",):
                truth = copy.deepcopy(m).double()(*[a.double() for a in x])
                d = [float((v.double() - truth).norm() / truth.norm()) for v in (y, e)] + [float((v.double() - truth).abs().max()) for v in (y, e)]
                del truth
            else:
                d = [float((y - e).abs().max()), float(e.abs().max())]
        print(name, "ready", ready, "plan s", round(t1 - t, 1), "first call s", round(t2 - t1, 1), "err", d, flush=True)
        del y, e, m, ours, x
        torch.cuda.empty_cache()
    except Exception:
        print(name, "FAILED"); traceback.print_exc()
