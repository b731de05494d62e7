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
char* PyBytes_AsString(object);
long PyBytes_Size(object);
object PyCFunction_NewEx(PyMethodDef*, object, object);
object PyDict_GetItemWithError(object, object);
void PyErr_Clear();
object PyErr_Format(object, const char*, ...);
object PyErr_Occurred();
void PyEval_RestoreThread(void*);
void* PyEval_SaveThread();
void* PyLong_AsVoidPtr(object);
object PyObject_CallFunctionObjArgs(object, ...);
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

extern "C" int PyDict_Next(object, long*, object*, object*);
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

// Whether PyTorch's test may see a tensor. Others: the names of its attributes, and the layout that has strides.
bool has_strides(object tensor, object nested, object layout, object strided) {
  return !says({PyObject_GetAttr(tensor, nested)}) && held{PyObject_GetAttr(tensor, layout)}.p == strided;
}

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
    if (k < others) alike = has_strides(tensor, of(NESTED), of(LAYOUT), of(STRIDED));
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

// What _fusewright_look saw in a model, a reference; null where it saw nothing, or something has died since.
// own: the model's dictionary.  known: begins with the name of that.
object seen(object known, object own) {
  const object looked = PyDict_GetItemWithError(own, PyTuple_GetItem(known, 0));
  const object saw = looked && PyList_Size(looked) ? PyList_GetItem(looked, 0) : nullptr;
  Py_IncRef(saw);  // another thread may empty the list
  return saw;
}

// The tensors of a model, if each of its objects is the one that _fusewright_look saw; else null. It saw rows of
// addresses; null stands for the model's own dictionary, and for what was not there.  given: a model, its table.
object still(object const* given, object own, object saw) {
  enum { TABLE, CLASS, MODULES, FACTS, KEYS, EMPTY, TENSORS, AGAIN };
  const auto of = [](object tuple, long k) { return PyTuple_GetItem(tuple, k); };
  bool same = saw && of(saw, TABLE) == given[1] && held{PyObject_Type(given[0])}.p == of(saw, CLASS);
  const auto each = [&](long field, long width, auto holds) {
    if (!same) return;
    const object* row = (const object*)PyBytes_AsString(of(saw, field));
    const object* const end = row + PyBytes_Size(of(saw, field)) / long(sizeof(object));
    for (; same && row < end; row += width) same = holds(row);
  };
  const auto found = [own](const object* row) { return PyDict_GetItemWithError(row[0] ? row[0] : own, row[1]); };
  const object again = same ? of(saw, AGAIN) : nullptr;
  for (long k = 0; same && k < PyTuple_Size(again); ++k) {
    const held yes{PyObject_CallObject(of(again, k), nullptr)};
    same = yes.p && PyObject_IsTrue(yes.p) == 1;
  }
  each(MODULES, 5, [&](const object* row) {
    return found(row) == row[2] && held{PyObject_Type(row[2])}.p == row[3] &&
           held{PyObject_GenericGetDict(row[2], nullptr)}.p == row[4];
  });
  each(FACTS, 3, [&](const object* row) { return found(row) == row[2]; });
  object keys = nullptr;
  long place = 0;
  each(KEYS, 2, [&](const object* row) {  // a dictionary and its first key, null and its second, and at its end null
    object key = nullptr, value = nullptr;
    if (row[0]) keys = row[0], place = 0;
    return (PyDict_Next(keys, &place, &key, &value) ? key : nullptr) == row[1];
  });
  each(EMPTY, 1, [](const object* row) { return PyDict_Size(row[0]) == 0; });
  const held tensors{same ? PyTuple_New(PyBytes_Size(of(saw, TENSORS)) / long(3 * sizeof(object))) : nullptr};
  long k = 0;
  each(TENSORS, 3, [&](const object* row) {
    if (found(row) != row[2]) return false;
    Py_IncRef(row[2]);
    return PyTuple_SetItem(tensors.p, k++, row[2]) == 0;
  });
  PyErr_Clear();
  if (same) Py_IncRef(tensors.p);
  return same ? tensors.p : nullptr;
}

// The tensors of a model whose every object is the one that _fusewright_look saw; else what that says now.
// given: a model, its table.  known: the name of the snapshot, _fusewright_look.
object state(object known, object const* given, long) {
  const held own{PyObject_GenericGetDict(given[0], nullptr)};
  const held saw{seen(known, own.p)};
  const object tensors = still(given, own.p, saw.p);
  if (tensors) return tensors;
  PyErr_Clear();
  return PyObject_CallFunctionObjArgs(PyTuple_GetItem(known, 1), given[0], given[1], nullptr);
}
}  // namespace
