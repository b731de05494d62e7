"""What an emitted file has for calls that come back, as Python text: it launches their steps at
once, as a CUDA graph.

A graph holds addresses and no values. Tensors of the model are read where they lie; where one lies
elsewhere, the call is another one. Arguments are copied to where the graph reads them, and results
out of where it leaves them. What else a launch depends on is part of what calls are told apart by:
the function, free sizes, device, stream, and the flags by which PyTorch chooses its routines. In
between, the graphs of a stream share their memory, since they run one after the other.
"""

from __future__ import annotations

COPY_BYTES = "\n_fusewright_copy_bytes = None  # on a stream, by C++, once it is built\n"
LAUNCH_GRAPH = "\n_fusewright_launch_graph = None  # on a stream, by C++, once it is built\n"
AGAIN = '''
def _fusewright_again(model, table, *inputs):
    """What a call makes that is like an earlier one in everything: its steps are launched at once.

    Nothing where something is different; C++ knows, once it is built.
    """
    return ()
'''
REPLAYED = '''
def _fusewright_lock():
    import _thread

    return _thread.allocate_lock()


class _FusewrightCounts(dict):
    """Nothing was counted of what is not there."""

    def __missing__(self, key):
        return 0


class _FusewrightAtEnd:
    """A block behind which a function is called, however it ends."""

    def __init__(self, function, *given):
        self.function, self.given = function, given

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.function(*self.given)


# Of one model: how many graphs, calls of a kind before it has one, which part of the GPU's memory a
# graph may keep.
_FUSEWRIGHT_MOST_GRAPHS, _FUSEWRIGHT_CALLS_BEFORE, _FUSEWRIGHT_PART_OF_MEMORY = 8, 2, 64
_FUSEWRIGHT_AT_ONCE = _FusewrightCounts()  # class -> calls that were launched at once
_FUSEWRIGHT_ONE_BY_ONE = {}  # class -> why a kind of call cannot be
# Device and stream -> a stream to record on; the memory of what cuBLAS has for it, and of graphs;
# these graphs. Others may tell cuBLAS to give its memory back, and it must not become another's.
_FUSEWRIGHT_POOLS = {}
_FUSEWRIGHT_RECORDS = _fusewright_lock()  # held by who records
# What says which routines PyTorch chooses, as far as this version has it: functions, arguments.
_FUSEWRIGHT_CHOICES = [
    (getattr(torch._C, f"_get_{name}"), of)
    for name, *of in (
        *[("fp32_precision_getter", "cuda", what) for what in ("matmul", "conv")],
        *[("cublas_allow_tf32",), ("cudnn_allow_tf32",)] * (torch.__version__ < "2.9"),
        *[("cudnn_enabled",), ("cudnn_benchmark",), ("cudnn_deterministic",)],
        *[("deterministic_algorithms",), ("blas_preferred_backend",)],
        *[(f"cublas_allow_{what}_reduced_precision_reduction",) for what in ("fp16", "bf16")],
        *[("cublas_allow_fp16_accumulation",), ("math_sdp_allow_fp16_bf16_reduction",)],
        *[(f"{what}_sdp_enabled",) for what in ("math", "flash", "mem_efficient", "cudnn")],
        *[("overrideable_sdp_enabled",), ("fa3_sdp_enabled",), ("sdp_priority_order",)],
    )
    if hasattr(torch._C, f"_get_{name}")
]


def _fusewright_choices():
    """What flags say of the routines that PyTorch chooses."""
    said = [ask(*of) for ask, of in _FUSEWRIGHT_CHOICES]
    return [tuple(one) if type(one) is list else one for one in said]


class _FusewrightGraphs(dict):
    """Kind of call -> how many there were, then their graph; a copy of the model has its own.

    "last" -> what `_fusewright_again` knows of one of these, whose `id` was that `before`.
    dropped: graphs that others took the place of. Each doubles the calls before there is a new one,
    so that calls that are always of another kind do not record all the time.
    """

    dropped = before = 0

    def __reduce__(self):
        return dict, ()


class _FusewrightGraph:
    """The steps of a kind of call, recorded for tensors of the model where they lie.

    Raises RuntimeError where they cannot be. PyTorch's own class for graphs is not used: while it
    records, no other thread can draw random numbers.
    """

    def __init__(self, steps, where, inputs, state):
        device = inputs[0].device
        before = torch.cuda.memory_reserved(device)
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = [tensor.clone() for tensor in inputs]
            with _FUSEWRIGHT_RECORDS:
                self.made = self.recorded(device, steps, (*where, *self.inputs, *state))
            made = [self.made] if isinstance(self.made, torch.Tensor) else self.made
            kept = all(one.clone().stride() == one.stride() for one in made)
        if not kept:
            raise RuntimeError("a result has gaps, and a copy of it has none")
        most = torch.cuda.get_device_properties(device).total_memory // _FUSEWRIGHT_PART_OF_MEMORY
        if torch.cuda.memory_reserved(device) - before > most:
            raise RuntimeError("what is between its steps is too much to be kept")
        self.lock = _fusewright_lock()  # of who uses the tensors of the graph
        self.alike = None
        self.taken = [(one.data_ptr(), one.nbytes) for one in self.inputs]
        self.given = [
            (one.data_ptr(), one.nbytes, (tuple(one.shape), one.stride(), one.dtype, device.index))
            for one in made
        ]

    def recorded(self, device, steps, given):
        """What the steps return, once the graph has run; it is `self.graph` from here on."""
        import ctypes
        import weakref

        stream, library = torch.cuda.current_stream(device), ctypes.CDLL(f"{_fusewright_library()}")
        record, end = library.fusewright_record, library.fusewright_end
        end.restype = library.fusewright_stream.restype = ctypes.c_void_p
        place = device.index, stream.cuda_stream
        if place not in _FUSEWRIGHT_POOLS:
            side = torch.cuda.ExternalStream(library.fusewright_stream(device.index), device)
            kept = torch.cuda.graph_pool_handle()
            _FUSEWRIGHT_POOLS[place] = [side, kept, None, weakref.WeakSet()]
        side, kept, pool, alive = _FUSEWRIGHT_POOLS[place]
        if not alive:  # PyTorch forgets a pool with the last graph that has it
            _FUSEWRIGHT_POOLS[place][2] = pool = torch.cuda.graph_pool_handle()
        alive.add(self)
        recording, memory = ctypes.c_void_p(side.cuda_stream), (device.index, pool)
        begin = torch._C._cuda_beginAllocateCurrentThreadToPool
        over = torch._C._cuda_endAllocateToPool

        def ended():
            self.graph = end(recording)
            over(*memory)
            if self.graph:
                graph = ctypes.c_void_p(self.graph)
                weakref.finalize(self, library.fusewright_forget, graph).atexit = False

        side.wait_event(stream.record_event())
        on_side = torch.cuda.stream(side)
        with on_side:
            begin(device.index, kept)  # for good: what cuBLAS has for this stream lies there
            with _FusewrightAtEnd(over, device.index, kept):
                one = torch.ones(8, 8, device=device)
                torch.mm(one, one)
            begin(*memory)
            weakref.finalize(self, torch._C._cuda_releasePool, *memory).atexit = False
            with _FusewrightAtEnd(ended):
                made = None if record(recording) else steps(*given)
        stream.wait_event(side.record_event())
        if not self.graph:
            raise RuntimeError("CUDA does not record one of its steps")
        return made

    def run(self, inputs, stream):
        """What the steps return for these."""
        copy = _fusewright_copy_bytes
        for (place, size), tensor in zip(self.taken, inputs, strict=True):
            copy(place, tensor.data_ptr(), size, stream)
        _fusewright_launch_graph(self.graph, stream)
        results = []
        for place, size, like in self.given:
            results.append(_fusewright_empty(*like))
            copy(results[-1].data_ptr(), place, size, stream)
        return results[0] if isinstance(self.made, torch.Tensor) else results

    def known(self, device, stream, inputs, state, written):
        """What `_fusewright_again` compares with a call, and what it needs to launch it."""
        given = *inputs, *state
        if self.alike is None or not self.alike(*given):
            self.alike = _fusewright_test_of(*given)
        plain = *_FUSEWRIGHT_LOOKING_ON, torch.is_grad_enabled, torch.get_default_dtype
        plain += torch._C._cuda_getDevice, torch._C._cuda_isCurrentStreamCapturing
        plain += (torch.backends.mha.get_fastpath_enabled,)
        asked = [*_FUSEWRIGHT_CHOICES, *((ask, ()) for ask in plain)]
        asked.append((torch._C._cuda_getCurrentRawStream, (device,)))
        places = [tensor.data_ptr() for tensor in state]
        spans = [(places[k], places[k] + state[k].nbytes) for k in written]
        return (
            tuple((ask, tuple(of), ask(*of)) for ask, of in asked),
            self.alike,
            *map(_fusewright_packed, (places, sum(spans, ()), sum(self.taken, ()))),
            *(self.graph, stream, tuple((at, size, like[:3]) for at, size, like in self.given)),
            *(tuple(written), self.lock.acquire, self.lock.release, self),  # alive while it is used
        )


def _fusewright_graph(name, graphs, key, given):
    """The graph of a kind of call, if it has one by now."""
    import os

    calls = graphs.get(key, 0)
    if calls < _FUSEWRIGHT_CALLS_BEFORE << graphs.dropped:
        if len(graphs) > 64:  # addresses that change with every call
            graphs.clear()
        graphs[key] = calls + 1
        return None
    known = torch.__version__ >= "2.11" and torch.__version__ < "2.16.dev0"
    if not known or os.environ.get("FUSEWRIGHT_GRAPHS", "1") == "0":
        return None
    old = [kind for kind, graph in [*graphs.items()] if isinstance(graph, _FusewrightGraph)]
    for kind in old[: max(0, len(old) + 1 - _FUSEWRIGHT_MOST_GRAPHS)]:
        graphs.pop(kind, None)
        graphs.pop("last", None)
        graphs.dropped += 1
    graphs.pop(key, None)  # so that the graphs are in their own order
    graphs[key] = None
    with _FusewrightOneByOne(name):
        graphs[key] = _FusewrightGraph(*given)
    return graphs[key]


class _FusewrightOneByOne:
    """Notes why steps cannot be recorded, whatever it is: one by one they do the same."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        fails = kind is not None and issubclass(kind, Exception)
        if fails:
            _FUSEWRIGHT_ONE_BY_ONE.setdefault(self.name, {})[f"{error}".split("\\n")[0]] = 1
        return fails


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
    with _FusewrightAtEnd(graph.lock.release):
        made = graph.run(inputs, stream)
    if written:
        _fusewright_increment_version([state[k] for k in written])
    _FUSEWRIGHT_AT_ONCE[name] += 1
    for saw in model.__dict__.get("_fusewright_looked", [])[:1]:
        if graphs.before == id(graph):  # calls of this kind in a row
            graphs["last"] = saw, *graph.known(where[-1], stream, inputs, state, written)
    graphs.before = id(graph)
    return made


def _fusewright_launches(name):
    """Of the calls of a class with kernels, those that were launched at once; why some are not."""
    why = [*_FUSEWRIGHT_ONE_BY_ONE.get(name, ())]
    return {"at once": _FUSEWRIGHT_AT_ONCE[name], "one by one, because": why}
'''
