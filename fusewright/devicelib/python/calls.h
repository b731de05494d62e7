// What Python calls. No header of Python is included: the names of its stable interface that are used stand here, so
// a machine without those headers builds kernels, and one library serves all versions.
#include <tuple>
#include <type_traits>

extern "C" {
using object = struct PyObject*;
struct PyMethodDef {
  const char* name;
  object (*function)(object, object const*, long);
  int flags;
  const char* text;
};
extern object PyExc_RuntimeError, PyExc_TypeError;
object PyBool_FromLong(long);
object PyCFunction_NewEx(PyMethodDef*, object, object);
object PyDict_GetItemWithError(object, object);
void PyErr_Clear();
object PyErr_Format(object, const char*, ...);
object PyErr_Occurred();
void PyEval_RestoreThread(void*);
void* PyEval_SaveThread();
void* PyLong_AsVoidPtr(object);
object PyObject_CallObject(object, object);
object PyObject_GenericGetDict(object, void*);
object PyObject_GetAttr(object, object);
int PyObject_IsTrue(object);
object PyObject_Type(object);
object PyTuple_GetItem(object, long);
object PyTuple_New(long);
long PyTuple_Size(object);
int PyTuple_SetItem(object, long, object);
void Py_DecRef(object);
void Py_IncRef(object);
}

extern "C" object PyDict_Keys(object);
extern "C" long PyDict_Size(object);
extern "C" object PyList_GetItem(object, long);
extern "C" long PyList_Size(object);
extern "C" int PyObject_RichCompareBool(object, object, int);

namespace {
const int FASTCALL = 0x80;  // METH_FASTCALL: a function gets an array of arguments and their count

object taken(object const*& given) { return *given++; }
// Starts a kernel; other threads of Python go on while it runs.
template <class R, class... A> object start(R (*run)(A...), object name, object const* given, long count) {
  if (count != sizeof...(A)) return PyErr_Format(PyExc_TypeError, "%S takes %d arguments.", name, int(sizeof...(A)));
  const std::tuple<A...> arguments{(A)(long)PyLong_AsVoidPtr(taken(given))...};
  if (PyErr_Occurred()) return nullptr;
  int error = 0;
  void* const thread = PyEval_SaveThread();
  if constexpr (std::is_void_v<R>) std::apply(run, arguments);
  else error = std::apply(run, arguments);
  PyEval_RestoreThread(thread);
  if (error) return PyErr_Format(PyExc_RuntimeError, "%S failed with CUDA error %d.", name, error);
  return PyBool_FromLong(0);
}
template <auto run> object kernel(object name, object const* given, long count) { return start(run, name, given, count); }

// A reference, given back at the end.
struct held {
  object p;
  ~held() { Py_DecRef(p); }
};
// Whether an answer is something other than None, zero or false; an error is.
bool says(const held& answer) { return !answer.p || PyObject_IsTrue(answer.p); }

// Whether nobody looks on, and tensors are like some for which every condition held. given: a key; the tensors that
// `state` returns, which have strides; others.  known: what _fusewright_build hands over, in its order.  An error is a
// no: Python then asks one by one.
object guard_hit(object known, object const* given, long count) {
  enum { CACHE, CACHE_WITH_GRADIENTS, GRADIENTS, NESTED, LAYOUT, STRIDED, LOOKING_ON };
  const auto of = [known](long k) { return PyTuple_GetItem(known, k); };
  bool alike = true;
  for (long k = LOOKING_ON, all = PyTuple_Size(known); alike && k < all; ++k)
    alike = !says({PyObject_CallObject(of(k), nullptr)});
  const long others = count - 2, several = PyTuple_Size(given[1]);
  const held tensors{PyTuple_New(others + several)};
  for (long k = 0; alike && k < others + several; ++k) {  // PyTorch's test must not see what has no strides
    const object tensor = k < others ? given[k + 2] : PyTuple_GetItem(given[1], k - others);
    if (k < others)
      alike = !says({PyObject_GetAttr(tensor, of(NESTED))}) && held{PyObject_GetAttr(tensor, of(LAYOUT))}.p == of(STRIDED);
    Py_IncRef(tensor);
    PyTuple_SetItem(tensors.p, k, tensor);
  }
  const object cache = of(says({PyObject_CallObject(of(GRADIENTS), nullptr)}) ? CACHE_WITH_GRADIENTS : CACHE);
  const object test = alike ? PyDict_GetItemWithError(cache, given[0]) : nullptr;
  if (test) return PyObject_CallObject(test, tensors.p);
  PyErr_Clear();
  return PyBool_FromLong(0);
}

// As _fusewright_module_matches. given: a module, its class.  names: of its hooks, then "forward".
object module_matches(object names, object const* given, long) {
  bool matches = held{PyObject_Type(given[0])}.p == given[1];
  const held own{matches ? PyObject_GenericGetDict(given[0], nullptr) : nullptr};
  for (long k = 0; matches && k < 3; ++k) {
    const object found = PyDict_GetItemWithError(own.p, PyTuple_GetItem(names, k));
    matches = k < 2 ? found && !PyObject_IsTrue(found) : !found;
  }
  PyErr_Clear();
  return PyBool_FromLong(matches);
}

// The tensors of a model whose every object is the one that _fusewright_look saw; else what that says now.
// given: a model, its table.  known: the name of the snapshot, None, _fusewright_look.
object state(object known, object const* given, long) {
  enum { TABLE, CLASS, MODULES, FACTS, KEYS, EMPTY, AGAIN, TENSORS };
  const auto of = [](object tuple, long k) { return PyTuple_GetItem(tuple, k); };
  const held own{PyObject_GenericGetDict(given[0], nullptr)};
  const object looked = PyDict_GetItemWithError(own.p, of(known, 0));
  const held saw{looked && PyList_Size(looked) ? PyList_GetItem(looked, 0) : nullptr};
  bool same = saw.p && of(saw.p, TABLE) == given[1] && held{PyObject_Type(given[0])}.p == of(saw.p, CLASS);
  Py_IncRef(saw.p);  // another thread may empty the list
  const auto all = [&](long field, auto holds) {
    const object entries = saw.p ? of(saw.p, field) : nullptr;
    for (long k = 0; same && k < PyTuple_Size(entries); ++k) same = holds(of(entries, k));
  };
  const auto found = [&](object entry) {
    const object place = of(entry, 0);
    return PyDict_GetItemWithError(place == of(known, 1) ? own.p : place, of(entry, 1));
  };
  const auto is_found = [&](object entry) { return PyLong_AsVoidPtr(of(entry, 2)) == found(entry); };
  all(AGAIN, [](object ask) {
    const held yes{PyObject_CallObject(ask, nullptr)};
    return yes.p && PyObject_IsTrue(yes.p) == 1;
  });
  all(MODULES, [&](object entry) {
    const object module = found(entry);
    return is_found(entry) && held{PyObject_Type(module)}.p == of(entry, 3) &&
           held{PyObject_GenericGetDict(module, nullptr)}.p == of(entry, 4);
  });
  all(FACTS, [&](object entry) { return found(entry) == (PyTuple_Size(entry) > 2 ? of(entry, 2) : nullptr); });
  all(KEYS, [&](object entry) {
    return PyObject_RichCompareBool(held{PyDict_Keys(of(entry, 0))}.p, of(entry, 1), 2 /* Py_EQ */) == 1;
  });
  all(EMPTY, [](object hooks) { return PyDict_Size(hooks) == 0; });
  const held tensors{same ? PyTuple_New(PyTuple_Size(of(saw.p, TENSORS))) : nullptr};
  long k = 0;
  all(TENSORS, [&](object entry) {
    const object tensor = found(entry);
    if (!is_found(entry)) return false;
    Py_IncRef(tensor);
    return PyTuple_SetItem(tensors.p, k++, tensor) == 0;
  });
  PyErr_Clear();
  if (same) return Py_IncRef(tensors.p), tensors.p;
  const held both{PyTuple_New(2)};
  for (k = 0; k < 2; ++k) Py_IncRef(given[k]), PyTuple_SetItem(both.p, k, given[k]);
  return PyObject_CallObject(of(known, 2), both.p);
}
}  // namespace
