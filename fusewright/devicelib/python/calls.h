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
int PyDict_Next(object, long*, object*, object*);
long PyDict_Size(object);
void PyErr_Clear();
object PyErr_Format(object, const char*, ...);
object PyErr_Occurred();
void PyEval_RestoreThread(void*);
void* PyEval_SaveThread();
void* PyLong_AsVoidPtr(object);
object PyList_GetItem(object, long);
long PyList_Size(object);
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

// Whether nobody looks on, and tensors are like some for which every condition held. given: a key, the tensors.
// known: what _fusewright_build hands over, in its order.  An error is a no: Python then asks one by one.
object guard_hit(object known, object const* given, long count) {
  enum { CACHE, CACHE_WITH_GRADIENTS, GRADIENTS, NESTED, LAYOUT, STRIDED, LOOKING_ON };
  const auto of = [known](long k) { return PyTuple_GetItem(known, k); };
  bool alike = true;
  for (long k = LOOKING_ON, all = PyTuple_Size(known); alike && k < all; ++k)
    alike = !says({PyObject_CallObject(of(k), nullptr)});
  const held tensors{PyTuple_New(count - 1)};
  for (long k = 1; alike && k < count; ++k) {  // PyTorch's test must not see what has no strides
    alike = !says({PyObject_GetAttr(given[k], of(NESTED))}) && held{PyObject_GetAttr(given[k], of(LAYOUT))}.p == of(STRIDED);
    Py_IncRef(given[k]);
    PyTuple_SetItem(tensors.p, k - 1, given[k]);
  }
  const object cache = of(says({PyObject_CallObject(of(GRADIENTS), nullptr)}) ? CACHE_WITH_GRADIENTS : CACHE);
  const object test = alike ? PyDict_GetItemWithError(cache, given[0]) : nullptr;
  if (test) return PyObject_CallObject(test, tensors.p);
  PyErr_Clear();
  return PyBool_FromLong(0);
}

// A tuple that is read from front to back.
struct reader {
  object tuple;
  long at = 0;
  bool more() const { return at < PyTuple_Size(tuple); }
  object next() { return PyTuple_GetItem(tuple, at++); }
  bool next_is(const void* address) { return PyLong_AsVoidPtr(next()) == address; }
};
// Whether modules are the very ones that a snapshot has, each with its own class and dictionary.
bool same_modules(object snapshot) {
  reader kept{PyTuple_GetItem(snapshot, 1)};
  long at = 0;
  object name, module;
  while (kept.more()) {
    reader child{kept.next()};
    if (!PyDict_Next(PyTuple_GetItem(snapshot, 0), &at, &name, &module) || child.next() != name || !child.next_is(module) || child.next() != held{PyObject_Type(module)}.p ||
        !child.next_is(held{PyObject_GenericGetDict(module, nullptr)}.p))
      return false;
  }
  return !PyDict_Next(PyTuple_GetItem(snapshot, 0), &at, &name, &module);
}
// The tensors of a model in which nothing is other than what _fusewright_look saw; null where something is.
object same_state(object model, object own, object nothing, object saw) {
  enum { CLASS, MODULES, TENSORS, VALUES, ABSENT, EMPTY, AGAIN };
  const auto of = [saw](long k) { return reader{PyTuple_GetItem(saw, k)}; };
  const auto found = [=](object place, object name) { return PyDict_GetItemWithError(place == nothing ? own : place, name); };
  const object again = PyTuple_GetItem(saw, AGAIN);
  bool same = held{PyObject_Type(model)}.p == PyTuple_GetItem(saw, CLASS) && (again == nothing || says({PyObject_CallObject(again, nullptr)}));
  for (reader all = of(MODULES); same && all.more();) same = same_modules(all.next());
  for (reader all = of(VALUES); same && all.more();) {
    const object place = all.next(), name = all.next();
    same = found(place, name) == all.next();
  }
  for (reader all = of(ABSENT); same && all.more();) {
    const object place = all.next();
    same = !found(place, all.next());
  }
  for (reader all = of(EMPTY); same && all.more();) same = PyDict_Size(all.next()) == 0;
  held state{same ? PyTuple_New(PyTuple_Size(PyTuple_GetItem(saw, TENSORS)) / 3) : nullptr};
  long k = 0;
  for (reader all = of(TENSORS); same && all.more(); ++k) {
    const object place = all.next(), tensor = found(place, all.next());
    same = all.next_is(tensor);
    if (same) Py_IncRef(tensor), PyTuple_SetItem(state.p, k, tensor);
  }
  if (same) Py_IncRef(state.p);
  return same ? state.p : nullptr;
}
// As _fusewright_state. given: a model, its table.  known: where its snapshot is, None, _fusewright_look.
object state(object known, object const* given, long) {
  const held own{PyObject_GenericGetDict(given[0], nullptr)};
  const object looked = PyDict_GetItemWithError(own.p, PyTuple_GetItem(known, 0));
  const held saw{looked && PyList_Size(looked) == 1 ? PyList_GetItem(looked, 0) : nullptr};
  if (saw.p) Py_IncRef(saw.p);  // another thread may empty the list
  const object found = saw.p ? same_state(given[0], own.p, PyTuple_GetItem(known, 1), saw.p) : nullptr;
  PyErr_Clear();
  if (found) return found;
  const held both{PyTuple_New(2)};
  for (long k = 0; k < 2; ++k) Py_IncRef(given[k]), PyTuple_SetItem(both.p, k, given[k]);
  return PyObject_CallObject(PyTuple_GetItem(known, 2), both.p);
}
}  // namespace
