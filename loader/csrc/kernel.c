/* kernel[grid](arguments): a call whose variant was chosen before goes to the driver from here, every
 * other one through Python.
 */
#include "native.h"

typedef struct {
  PyObject_HEAD
  PyObject *names, *python; /* the parameters' names; python(grid, stream, args, kwargs) */
  Table table;
} Calls;

typedef struct {
  PyObject_HEAD
  Vectorcall call;
  Calls *calls;
  PyObject *grid, *stream;
} Bound;

static PyTypeObject *calls_type, *bound_type;

static PyObject *through_python(Bound *bound, const Key *key, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames) {
  PyObject *first = PyTuple_Pack(2, bound->grid, bound->stream);
  unsigned long before = generation;
  PyObject *answer = first ? call_vector(bound->calls->python, first, args, nargs, kwnames) : NULL;
  Py_XDECREF(first);
  if (!answer) return NULL;
  PyObject *result, *plan;
  int fault = !PyArg_ParseTuple(answer, "OO", &result, &plan);
  if (!fault && key && Py_TYPE(plan) == plan_type) fault = table_put(&bound->calls->table, key, plan, before);
  if (!fault) Py_INCREF(result);
  Py_DECREF(answer);
  return fault ? NULL : result;
}

/* One to three sizes within the limits of a launch: 1; else 0, and Python says what is wrong. */
static int read_grid(PyObject *sizes, unsigned num_ctas, unsigned grid[3]) {
  int tuple = PyTuple_Check(sizes);
  if (!tuple && !PyList_Check(sizes)) return 0;
  Py_ssize_t n = tuple ? PyTuple_Size(sizes) : PyList_Size(sizes);
  if (n < 1 || n > 3) return 0;
  grid[0] = grid[1] = grid[2] = 1;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = tuple ? PyTuple_GetItem(sizes, i) : PyList_GetItem(sizes, i);
    PyObject *number = NULL;
    if (item) {
      Py_INCREF(item); /* its __index__ may change the list */
      number = PyNumber_Index(item);
      Py_DECREF(item);
    }
    long long size = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (size == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      return 0;
    }
    if (size < 0 || size > (i == 0 ? 0x7fffffffLL / num_ctas : 0xffffLL)) return 0;
    grid[i] = (unsigned)size;
  }
  return 1;
}

/* What a callable grid gets: every argument by name, the constexprs of the variant among them. */
static PyObject *call_grid(Bound *bound, Plan *plan, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames) {
  PyObject *meta = PyDict_Copy(plan->meta);
  if (!meta) return NULL;
  PyObject *sizes = NULL;
  Py_ssize_t total = nargs + (kwnames ? PyTuple_Size(kwnames) : 0);
  for (Py_ssize_t i = 0; i < total; i++) {
    PyObject *name = i < nargs ? PyTuple_GetItem(bound->calls->names, i) : PyTuple_GetItem(kwnames, i - nargs);
    /* Compile options are keywords of the call and no arguments of the kernel. */
    if (i >= nargs && !PySequence_Contains(bound->calls->names, name)) continue;
    if (!name || PyDict_SetItem(meta, name, args[i])) goto done;
  }
  sizes = PyObject_CallFunctionObjArgs(bound->grid, meta, NULL);
done:
  Py_DECREF(meta);
  return sizes;
}

/* Puts the call into key and sources; 0 where it holds what only Python reads. */
static int read_call(Bound *bound, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Key *key,
                     uint64_t *sources) {
  Calls *calls = bound->calls;
  Py_ssize_t n_names = PyTuple_Size(calls->names);
  Py_ssize_t total = nargs + (kwnames ? PyTuple_Size(kwnames) : 0);
  if (nargs > n_names || n_names > MAX_ARGS || total > MAX_ARGS) return 0;
  key_start(key);
  key_word(key, (uint64_t)(bound->grid == Py_None) | (uint64_t)nargs << 8);
  if (!key_value(key, bound->stream)) return 0;
  for (Py_ssize_t i = 0; i < total; i++) {
    Py_ssize_t at = i;
    if (i >= nargs) {
      PyObject *name = PyTuple_GetItem(kwnames, i - nargs);
      if (!key_text(key, name)) return 0;
      for (at = 0; at < n_names; at++)
        if (PyTuple_GetItem(calls->names, at) == name) break;
    }
    DLTensor view;
    if (at < n_names && tensor_read(args[i], &view)) {
      if (!tensor_is_literal(args[i], &view)) return 0;
      key_tensor(key, &view, 0);
      tensor_address(&view, &sources[at]);
    } else if (!key_value(key, args[i])) {
      return 0;
    }
  }
  return 1;
}

static PyObject *bound_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
  Bound *bound = (Bound *)self;
  Calls *calls = bound->calls;
  Py_ssize_t nargs = NARGS(nargsf);
  Key key;
  uint64_t sources[MAX_ARGS];
  unsigned grid[3];
  if (!enabled || !tensor_configured || !read_call(bound, args, nargs, kwnames, &key, sources))
    return through_python(bound, NULL, args, nargs, kwnames);
  Plan *plan = (Plan *)table_get(&calls->table, &key);
  if (!plan) return through_python(bound, &key, args, nargs, kwnames);
  Py_INCREF(plan);
  PyObject *result = NULL;
  int readable = 1, chosen = 0;
  if (bound->grid == Py_None) {
    memcpy(grid, plan->grid, sizeof grid);
  } else if (PyCallable_Check(bound->grid)) {
    PyObject *sizes = call_grid(bound, plan, args, nargs, kwnames);
    if (!sizes) goto done;
    chosen = 1;
    readable = read_grid(sizes, plan->num_ctas, grid);
    Py_DECREF(sizes);
  } else {
    readable = read_grid(bound->grid, plan->num_ctas, grid);
  }
  int status = LAUNCH_ELSEWHERE;
  if (readable) {
    int empty = !grid[0] || !grid[1] || !grid[2];
    status = empty ? 0 : plan_launch(plan, sources, grid);
    /* An empty grid that was given, not computed, is found before any variant is asked for. */
    if (empty && chosen) plan_count(plan, 0);
    if (!status) {
      result = empty ? Py_None : plan->entry;
      Py_INCREF(result);
    }
  }
  if (status == LAUNCH_ELSEWHERE) result = through_python(bound, NULL, args, nargs, kwnames);
  else if (status) result = plan_fail(plan, status);
done:
  Py_DECREF(plan);
  return result;
}

static PyObject *bound_call(PyObject *self, PyObject *args, PyObject *kwargs) {
  return vector_as_call(bound_vectorcall, self, args, kwargs);
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg) {
  Bound *bound = (Bound *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT((PyObject *)bound->calls);
  Py_VISIT(bound->grid);
  Py_VISIT(bound->stream);
  return 0;
}

static int bound_clear(PyObject *self) {
  Bound *bound = (Bound *)self;
  Py_CLEAR(bound->calls);
  Py_CLEAR(bound->grid);
  Py_CLEAR(bound->stream);
  return 0;
}

static void bound_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  bound_clear(self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyMemberDef bound_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot bound_slots[] = {
    {Py_tp_dealloc, bound_dealloc}, {Py_tp_traverse, bound_traverse}, {Py_tp_clear, bound_clear},
    {Py_tp_call, bound_call},       {Py_tp_members, bound_members},   {0, NULL},
};

static PyType_Spec bound_spec = {
    .name = "aot.loader._native.Bound",
    .basicsize = sizeof(Bound),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = bound_slots,
};

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *keywords[] = {"names", "python", NULL};
  PyObject *names, *python;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Calls", keywords, &PyTuple_Type, &names, &python))
    return NULL;
  PyObject *interned = PyTuple_New(PyTuple_Size(names));
  if (!interned) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
    PyObject *name = PyTuple_GetItem(names, i);
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    PyTuple_SetItem(interned, i, name);
  }
  Calls *calls = (Calls *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!calls) {
    Py_DECREF(interned);
    return NULL;
  }
  calls->names = interned;
  Py_INCREF(python);
  calls->python = python;
  return (PyObject *)calls;
}

static PyObject *bind(PyObject *self, PyObject *args) {
  PyObject *grid, *stream;
  if (!PyArg_ParseTuple(args, "OO", &grid, &stream)) return NULL;
  Bound *bound = (Bound *)((allocfunc)PyType_GetSlot(bound_type, Py_tp_alloc))(bound_type, 0);
  if (!bound) return NULL;
  bound->call = bound_vectorcall;
  Py_INCREF(self);
  Py_INCREF(grid);
  Py_INCREF(stream);
  bound->calls = (Calls *)self;
  bound->grid = grid;
  bound->stream = stream;
  return (PyObject *)bound;
}

static PyObject *remembered(PyObject *self, PyObject *ignored) {
  (void)ignored;
  return PyLong_FromSize_t(((Calls *)self)->table.used);
}

static int calls_traverse(PyObject *self, visitproc visit, void *arg) {
  Calls *calls = (Calls *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(calls->names);
  Py_VISIT(calls->python);
  return table_visit(&calls->table, visit, arg);
}

static int calls_clear(PyObject *self) {
  Calls *calls = (Calls *)self;
  Py_CLEAR(calls->names);
  Py_CLEAR(calls->python);
  table_clear(&calls->table);
  return 0;
}

static void calls_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  calls_clear(self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyMethodDef calls_methods[] = {
    {"bind", bind, METH_VARARGS, "bind(grid, stream): what kernel[grid] is; None: the spec's, torch's current."},
    {"remembered", remembered, METH_NOARGS, "How many prepared calls are kept."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new},           {Py_tp_dealloc, calls_dealloc}, {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},       {Py_tp_methods, calls_methods}, {0, NULL},
};

static PyType_Spec calls_spec = {
    .name = "aot.loader._native.Calls",
    .basicsize = sizeof(Calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = calls_slots,
};

int kernel_setup(PyObject *module) {
  return add_type(module, &bound_spec, &bound_type) || add_type(module, &calls_spec, &calls_type) ? -1 : 0;
}
