// What Python calls: addresses and numbers in, an exception out where a kernel could not be started.
//
// The surprising fact: no header of Python is included. The few names of its stable interface that are
// used stand here, so a machine without those headers builds kernels, and one library serves all versions.
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

extern "C" {
struct PyObject;
struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, std::ptrdiff_t);
  int flags;
  const char* text;
};
extern PyObject *PyExc_RuntimeError, *PyExc_TypeError;
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_Occurred();
void PyEval_RestoreThread(void*);
void* PyEval_SaveThread();
long PyLong_AsLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
PyObject* PyLong_FromLong(long);
}

namespace {
template <class T> T taken(PyObject* given) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(PyLong_AsVoidPtr(given));
  else return static_cast<T>(PyLong_AsLong(given));
}

// Other threads of Python go on while a kernel runs.
template <class R, class... A, std::size_t... I>
PyObject* call(const char* name, R (*run)(A...), PyObject* const* given, std::index_sequence<I...>) {
  const std::tuple<A...> arguments{taken<A>(given[I])...};
  if (PyErr_Occurred()) return nullptr;
  int error = 0;
  void* thread = PyEval_SaveThread();
  if constexpr (std::is_void_v<R>) std::apply(run, arguments);
  else error = std::apply(run, arguments);
  PyEval_RestoreThread(thread);
  if (error) return PyErr_Format(PyExc_RuntimeError, "%s failed with CUDA error %d.", name, error);
  return PyLong_FromLong(0);
}

template <class R, class... A>
PyObject* call(const char* name, R (*run)(A...), PyObject* const* given, std::ptrdiff_t count) {
  if (count == sizeof...(A)) return call(name, run, given, std::index_sequence_for<A...>());
  return PyErr_Format(PyExc_TypeError, "%s takes %d arguments.", name, int(sizeof...(A)));
}

const int FASTCALL = 0x80;  // METH_FASTCALL: an array of arguments and their count
}  // namespace
