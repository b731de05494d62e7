// The steps of a forward as a CUDA graph: what records it, and the calls that are launched at once. It stands behind
// calls.h.
#include <vector>

extern "C" {
object PyList_New(long);
int PyList_SetItem(object, long, object);

// The stream is nobody else's, so that what PyTorch's routines keep for each stream is only used where the graphs run,
// one after the other.
void* fusewright_stream(int device) {
  int before = 0;
  cudaStream_t made = nullptr;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  cudaSetDevice(before);
  return made;
}
int fusewright_record(cudaStream_t stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}
// The launches since then, as a graph; null where one of them cannot be recorded.
void* fusewright_end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphInstantiate(&made, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // who comes next has no part in it
  return made;
}
void fusewright_forget(cudaGraphExec_t graph) { cudaGraphExecDestroy(graph); }
}

namespace {
int launch_graph(void* graph, void* stream) { return cudaGraphLaunch(cudaGraphExec_t(graph), cudaStream_t(stream)); }
int copy_bytes(void* to, const void* from, long bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cudaStream_t(stream));
}
struct copied {
  char* to;
  const char* from;
  long bytes;
};
int copy_all(const std::vector<copied>& some, void* stream) {
  int error = 0;
  for (const copied& one : some) error = error ? error : copy_bytes(one.to, one.from, one.bytes, stream);
  return error;
}

// What a call makes that is like an earlier one in everything, as `_FusewrightGraph.known` has that: its steps are
// launched at once. False where something is different.  given: a model, its table, the tensors among the arguments.
object again(object known, object const* given, long count) {
  enum { NAME, GRAPHS, LAST, NESTED, LAYOUT, STRIDED, ADDRESS, EMPTY, INCREMENT, NO };
  enum { SAW, ASKED, ALIKE, PLACES, SPANS, TAKEN, GRAPH, STREAM, GIVEN, WRITTEN, ACQUIRE, RELEASE };
  const auto of = [](object tuple, long k) { return PyTuple_GetItem(tuple, k); };
  const auto numbers = [&of](object tuple, long k) { return (const long*)PyBytes_AsString(of(tuple, k)); };
  const auto address = [&](object tensor) {
    return (char*)PyLong_AsVoidPtr(held{PyObject_CallFunctionObjArgs(of(known, ADDRESS), tensor, nullptr)}.p);
  };
  const auto other = [] { return PyErr_Clear(), PyBool_FromLong(0); };

  const held own{PyObject_GenericGetDict(given[0], nullptr)};
  const object graphs = PyDict_GetItemWithError(own.p, of(known, GRAPHS));
  const object found = graphs ? PyDict_GetItemWithError(graphs, of(known, LAST)) : nullptr;
  Py_IncRef(found);  // another thread may take it away
  const held last{found}, saw{seen(known, own.p)};
  if (!found || saw.p != of(found, SAW)) return other();
  for (long k = 0, all = PyTuple_Size(of(found, ASKED)); k < all; ++k) {  // modes, flags, device, stream
    const object question = of(of(found, ASKED), k);
    const held answer{PyObject_CallObject(of(question, 0), of(question, 1))};
    if (!answer.p || PyObject_RichCompareBool(answer.p, of(question, 2), 2 /* Py_EQ */) != 1) return other();
  }
  const held ours{still(given, own.p, saw.p)};
  if (!ours.p) return other();

  const long inputs = count - 2, several = PyTuple_Size(ours.p);
  const held tensors{PyTuple_New(inputs + several)};
  for (long k = 0; k < inputs + several; ++k) {
    const object tensor = k < inputs ? given[k + 2] : of(ours.p, k - inputs);
    if (k < inputs && !has_strides(tensor, of(known, NESTED), of(known, LAYOUT), of(known, STRIDED))) return other();
    Py_IncRef(tensor);
    PyTuple_SetItem(tensors.p, k, tensor);
  }
  const held alike{PyObject_CallObject(of(found, ALIKE), tensors.p)};
  if (!alike.p || PyObject_IsTrue(alike.p) != 1) return other();
  for (long k = 0; k < several; ++k)
    if ((long)address(of(ours.p, k)) != numbers(found, PLACES)[k]) return other();
  std::vector<copied> in, out;
  const long *const spans = numbers(found, SPANS), *const into = numbers(found, TAKEN);
  for (long k = 0; k < inputs; ++k) {
    in.push_back({(char*)into[2 * k], address(given[k + 2]), into[2 * k + 1]});
    const long begin = (long)in[k].from, end = begin + in[k].bytes;
    for (long s = 0, all = PyBytes_Size(of(found, SPANS)) / long(sizeof(long)); s < all; s += 2)
      if (spans[s] < end && begin < spans[s + 1]) return other();  // an argument that is to be written
  }

  const held made{PyTuple_New(PyTuple_Size(of(found, GIVEN)))};
  for (long k = 0; k < PyTuple_Size(made.p); ++k) {
    const object one = of(of(found, GIVEN), k), tensor = PyObject_CallObject(of(known, EMPTY), of(one, 2));
    if (!tensor) return nullptr;  // there is no memory
    PyTuple_SetItem(made.p, k, tensor);
    out.push_back({address(tensor), (const char*)PyLong_AsVoidPtr(of(one, 0)), (long)PyLong_AsVoidPtr(of(one, 1))});
  }
  void *const graph = PyLong_AsVoidPtr(of(found, GRAPH)), *const stream = PyLong_AsVoidPtr(of(found, STREAM));
  if (PyErr_Occurred()) return other();
  const held alone{PyObject_CallFunctionObjArgs(of(found, ACQUIRE), of(known, NO), nullptr)};
  if (!alone.p || PyObject_IsTrue(alone.p) != 1) return other();
  void* const thread = PyEval_SaveThread();
  int error = copy_all(in, stream);
  error = error ? error : launch_graph(graph, stream);
  error = error ? error : copy_all(out, stream);
  PyEval_RestoreThread(thread);
  if (!held{PyObject_CallObject(of(found, RELEASE), nullptr)}.p) return nullptr;
  if (error) return PyErr_Format(PyExc_RuntimeError, "A CUDA graph failed with CUDA error %d.", error);

  const object written = of(found, WRITTEN);
  const held changed{PyList_New(PyTuple_Size(written))};
  for (long k = 0; k < PyTuple_Size(written); ++k) {
    const object tensor = of(ours.p, (long)PyLong_AsVoidPtr(of(written, k)));
    Py_IncRef(tensor);
    PyList_SetItem(changed.p, k, tensor);
  }
  if (PyTuple_Size(written) && !held{PyObject_CallFunctionObjArgs(of(known, INCREMENT), changed.p, nullptr)}.p)
    return nullptr;
  Py_IncRef(made.p);
  return made.p;
}
}  // namespace
