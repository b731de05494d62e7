import sys, time, json
from pathlib import Path
from fusewright.pipeline import optimize_file
t0 = time.time()
o = optimize_file(Path(sys.argv[1]), out=Path(sys.argv[2]), target="cuda", force=True, progress=lambda s: print(f"{time.time()-t0:6.1f} {s}", flush=True))
print(f"{time.time()-t0:6.1f} end", o.verdict.verdict, o.verdict.reason)
for r in o.verdict.checks: print(r.outcome, r.check, r.evidence)
print(o.verdict.timing)
