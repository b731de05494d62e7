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
void Py_DecRef(PyObject*);
void Py_IncRef(PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_Occurred();
void PyEval_RestoreThread(void*);
void* PyEval_SaveThread();
long PyLong_AsLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_GenericGetDict(PyObject*, void*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
int PyObject_IsTrue(PyObject*);
PyObject* PyObject_Type(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, std::ptrdiff_t);
PyObject* PyTuple_New(std::ptrdiff_t);
std::ptrdiff_t PyTuple_Size(PyObject*);
int PyTuple_SetItem(PyObject*, std::ptrdiff_t, PyObject*);
PyObject* PyUnicode_InternFromString(const char*);
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

// A reference, given back at the end.
struct held {
  PyObject* p;
  ~held() {
    if (p) Py_DecRef(p);
  }
};

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }
// False for Python, or nothing if there was an error.
PyObject* no() { return PyErr_Occurred() ? nullptr : PyBool_FromLong(0); }
// Whether a function without arguments says something other than None, zero or false.
bool says(PyObject* function) {
  const held answer{PyObject_CallObject(function, nullptr)};
  return !answer.p || PyObject_IsTrue(answer.p);
}

// What Python hands over (_FUSEWRIGHT_GUARD_STATE in the emitted file), in its order.
enum { TESTS, GRADIENTS, STRIDED, TENSOR, PARAMETER, FORWARD_AD, MODES, OTHER_MODES, LOOKING_ON };
PyObject* of(PyObject* known, std::ptrdiff_t k) { return PyTuple_GetItem(known, k); }

// Whether nobody looks on, but for compilers.
bool alone(PyObject* known) {
  static PyObject* const current_level = word("_current_level");
  const held level{PyObject_GetAttr(of(known, FORWARD_AD), current_level)};
  if (!level.p || PyLong_AsLong(level.p) >= 0 || PyErr_Occurred()) return false;
  for (std::ptrdiff_t k = LOOKING_ON, all = PyTuple_Size(known); k < all; ++k)
    if (says(of(known, k))) return false;
  return !says(of(known, MODES)) || !says(of(known, OTHER_MODES));
}

// Whether a tensor has strides, without which PyTorch's test must not see it.
bool strided(PyObject* known, PyObject* tensor) {
  static PyObject *const is_nested = word("is_nested"), *const layout = word("layout");
  const held type{PyObject_Type(tensor)};
  if (type.p != of(known, TENSOR) && type.p != of(known, PARAMETER)) return false;
  const held nested{PyObject_GetAttr(tensor, is_nested)};
  if (!nested.p || PyObject_IsTrue(nested.p)) return false;
  const held laid{PyObject_GetAttr(tensor, layout)};
  return laid.p == of(known, STRIDED);
}

// The same as _fusewright_guard_hit. given: the batch size, tensors.
PyObject* seen(PyObject* known, PyObject* const* given, std::ptrdiff_t count) {
  if (!alone(known)) return no();
  for (std::ptrdiff_t k = 1; k < count; ++k)
    if (!strided(known, given[k])) return no();
  const held key{PyTuple_New(2)}, tensors{PyTuple_New(count - 1)};
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    Py_IncRef(given[k]);
    PyTuple_SetItem(k ? tensors.p : key.p, k ? k - 1 : 0, given[k]);
  }
  PyTuple_SetItem(key.p, 1, PyBool_FromLong(says(of(known, GRADIENTS))));
  PyObject* const alike = PyDict_GetItemWithError(of(known, TESTS), key.p);
  return alike ? PyObject_CallObject(alike, tensors.p) : no();
}

// The same as _fusewright_module_matches. given: a module, its class.
PyObject* module(PyObject*, PyObject* const* given, std::ptrdiff_t) {
  static PyObject *const names[] = {word("_forward_hooks"), word("_forward_pre_hooks")}, *const forward = word("forward");
  const held type{PyObject_Type(given[0])};
  if (type.p != given[1]) return no();
  const held attributes{PyObject_GenericGetDict(given[0], nullptr)};
  if (!attributes.p) return nullptr;
  for (PyObject* name : names) {
    PyObject* const hooks = PyDict_GetItemWithError(attributes.p, name);
    if (!hooks || PyObject_IsTrue(hooks)) return no();
  }
  return PyDict_GetItemWithError(attributes.p, forward) || PyErr_Occurred() ? no() : PyBool_FromLong(1);
}
PyMethodDef guards[] = {
    {"_fusewright_guard_hit", seen, FASTCALL, nullptr},
    {"_fusewright_module_matches", module, FASTCALL, nullptr},
};
}  // namespace

extern "C" PyObject* fusewright_guard(int k, PyObject* known) { return PyCFunction_NewEx(guards + k, known, nullptr); }
