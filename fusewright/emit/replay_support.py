"""What an emitted file has for calls that come back, as Python text: it launches their steps at
once, as a CUDA graph.

A graph holds addresses and no values. Tensors of the model are read where they lie; where one lies
elsewhere, the call is another one. Arguments are copied to where the graph reads them, and results
out of where it leaves them. What else a launch depends on is part of what calls are told apart by:
the function, free sizes, device, stream, and the flags by which PyTorch chooses its routines. In
between, the graphs of a stream share their memory, since they run one after the other.
"""

from __future__ import annotations

# Behind the C++ that makes calls: a stream that nobody else has, so that what PyTorch's libraries
# keep for each stream is only used where the graphs run, one after the other.
RECORDING_STREAM = '''
extern "C" void* fusewright_stream(int device) {
  int before = 0;
  cudaStream_t made = nullptr;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  cudaSetDevice(before);
  return made;
}
'''

REPLAYED = '''
# Of one model: how many graphs, how many bytes one may keep, and calls of a kind before it has one.
_FUSEWRIGHT_MOST_GRAPHS, _FUSEWRIGHT_MOST_BYTES, _FUSEWRIGHT_CALLS_BEFORE = 8, 1 << 28, 2
_FUSEWRIGHT_AT_ONCE = {}  # class -> calls that were launched at once
_FUSEWRIGHT_ONE_BY_ONE = {}  # class -> why a kind of call cannot be
_FUSEWRIGHT_POOLS = {}  # device and stream -> a stream to record on, and the memory of its graphs
# What says which routines PyTorch chooses, as far as this version has it.
_FUSEWRIGHT_CHOICES = [
    getattr(torch._C, f"_get_{name}")
    for name in (
        *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "deterministic_algorithms"),
        *("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_fp16_accumulation"),
        *("cublas_allow_bf16_reduced_precision_reduction", "blas_preferred_backend"),
        *("math_sdp_enabled", "flash_sdp_enabled", "mem_efficient_sdp_enabled"),
        *("cudnn_sdp_enabled", "overrideable_sdp_enabled", "fa3_sdp_enabled"),
        *("math_sdp_allow_fp16_bf16_reduction", "sdp_priority_order"),
    )
    if hasattr(torch._C, f"_get_{name}")
]


def _fusewright_choices():
    """What flags say of the routines that PyTorch chooses."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # PyTorch 2.9 and newer
        ask = torch._C._get_fp32_precision_getter
        rounds = ask("cuda", "matmul"), ask("cuda", "conv")
    else:
        rounds = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
    said = [choice() for choice in _FUSEWRIGHT_CHOICES]
    return (*rounds, *[tuple(one) if type(one) is list else one for one in said])


class _FusewrightGraphs(dict):
    """Kind of call -> how many there were, then their graph; a copy of the model has its own."""

    def __reduce__(self):
        return dict, ()


class _FusewrightGraph:
    """The steps of a kind of call, recorded for tensors of the model where they lie.

    Raises RuntimeError where they cannot be.
    """

    def __init__(self, steps, where, inputs, state):
        import ctypes
        import threading

        device = inputs[0].device
        stream = torch.cuda.current_stream(device)
        place = device.index, stream.cuda_stream
        if place not in _FUSEWRIGHT_POOLS:
            make = ctypes.CDLL(str(_fusewright_library())).fusewright_stream
            make.restype = ctypes.c_void_p
            side = torch.cuda.ExternalStream(make(device.index), device=device)
            _FUSEWRIGHT_POOLS[place] = side, torch.cuda.graph_pool_handle()
        side, pool = _FUSEWRIGHT_POOLS[place]
        self.lock, self.graph = threading.Lock(), torch.cuda.CUDAGraph()
        before = torch.cuda.memory_reserved(device)
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = [tensor.clone() for tensor in inputs]
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                self.graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    made = steps(*where, *self.inputs, *state)
                finally:
                    self.graph.capture_end()
            stream.wait_stream(side)
            self.one = isinstance(made, torch.Tensor)
            self.made = [made] if self.one else made
            kept = all(one.clone().stride() == one.stride() for one in self.made)
        if not kept:
            raise RuntimeError("a result has gaps, and a copy of it has none")
        if torch.cuda.memory_reserved(device) - before > _FUSEWRIGHT_MOST_BYTES:
            raise RuntimeError("what is between its steps is too much to be kept")

    def run(self, inputs):
        """What the steps return for these."""
        for mine, given in zip(self.inputs, inputs):
            mine.copy_(given)
        self.graph.replay()
        return self.made[0].clone() if self.one else [one.clone() for one in self.made]


def _fusewright_graph(name, graphs, key, given):
    """The graph of a kind of call, if it has one by now."""
    import os

    calls = graphs.get(key, 0)
    if calls < _FUSEWRIGHT_CALLS_BEFORE:
        if len(graphs) > 64:  # addresses that change with every call
            graphs.clear()
        graphs[key] = calls + 1
        return None
    if os.environ.get("FUSEWRIGHT_GRAPHS", "1") == "0":
        return None
    old = [kind for kind in graphs if isinstance(graphs[kind], _FusewrightGraph)]
    for kind in old[: len(old) + 1 - _FUSEWRIGHT_MOST_GRAPHS]:
        del graphs[kind]
    try:
        graphs[key] = _FusewrightGraph(*given)
    except (RuntimeError, AttributeError, TypeError) as error:  # also of a PyTorch without a part
        _FUSEWRIGHT_ONE_BY_ONE.setdefault(name, {})[f"{error}".split("\\n")[0]] = 1
        graphs[key] = None
    return graphs[key]


def _fusewright_replayed(model, steps, where, inputs, state, written=()):
    """What the steps return, launched at once where calls of this kind came before.

    where: the free sizes and the device.  written: the positions of what is changed in `state`.
    With FUSEWRIGHT_GRAPHS=0 in the environment, steps are launched one by one.
    """
    graphs = model.__dict__.get("_fusewright_graphs")
    if type(graphs) is not _FusewrightGraphs:
        graphs = model.__dict__["_fusewright_graphs"] = _FusewrightGraphs()
    stream = torch._C._cuda_getCurrentRawStream(where[-1])
    addresses = [tensor.data_ptr() for tensor in state]
    key = (steps, *where, stream, *_fusewright_choices(), *addresses)
    here = torch._C._cuda_getDevice() == where[-1]
    graph, name = graphs.get(key, 0), type(model).__name__
    if not here or torch._C._cuda_isCurrentStreamCapturing():
        graph = None
    elif type(graph) is int:
        graph = _fusewright_graph(name, graphs, key, (steps, where, inputs, state))
    if graph is None or not graph.lock.acquire(blocking=False):
        return steps(*where, *inputs, *state)
    try:
        made = graph.run(inputs)
    finally:
        graph.lock.release()
    changed = [state[k] for k in written]
    for tensor in changed:
        _fusewright_increment_version(tensor)
    _FUSEWRIGHT_AT_ONCE[name] = _FUSEWRIGHT_AT_ONCE.get(name, 0) + 1
    return made


def _fusewright_launches(name):
    """Of the calls of a class with kernels, those that were launched at once; why some are not."""
    why = [*_FUSEWRIGHT_ONE_BY_ONE.get(name, ())]
    return {"at once": _FUSEWRIGHT_AT_ONCE.get(name, 0), "one by one, because": why}
'''
