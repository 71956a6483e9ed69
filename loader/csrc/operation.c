/* A function over tensors, such as aot.ops.sum: a call that was prepared before goes to the kernel
 * from here, every other one through Python.
 */
#include "native.h"

typedef struct {
  PyObject_HEAD
  Vectorcall call;
  PyObject *dict, *python;
  Table table;
  int guarded; /* torch's modes and tracers must see every call */
  unsigned long long hits;
} Operation;

static PyTypeObject *operation_type;
static PyObject *s_out;

/* Calls python(args, kwargs), which answers (result, plan or None); a plan is kept for the key. */
static PyObject *through_python(Operation *op, const Key *key, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames) {
  unsigned long before = generation;
  PyObject *answer = call_vector(op->python, Py_None, args, nargs, kwnames);
  if (!answer) return NULL;
  PyObject *result, *plan;
  if (!PyArg_ParseTuple(answer, "OO", &result, &plan)) {
    Py_DECREF(answer);
    return NULL;
  }
  if (key && Py_TYPE(plan) == plan_type && table_put(&op->table, key, plan, before)) {
    Py_DECREF(answer);
    return NULL;
  }
  Py_INCREF(result);
  Py_DECREF(answer);
  return result;
}

static PyObject *operation_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                                      PyObject *kwnames) {
  Operation *op = (Operation *)self;
  Py_ssize_t nargs = NARGS(nargsf);
  Py_ssize_t total = nargs + (kwnames ? PyTuple_Size(kwnames) : 0);
  DLTensor view, out_view;
  PyObject *out = NULL;
  Key key;
  if (!enabled || !tensor_configured || nargs < 1 || total > MAX_ARGS || !tensor_read(args[0], &view))
    return through_python(op, NULL, args, nargs, kwnames);
  key_start(&key);
  key_tensor(&key, &view, 1);
  for (Py_ssize_t i = 1; i < total; i++) {
    if (i >= nargs) {
      PyObject *name = PyTuple_GetItem(kwnames, i - nargs);
      if (!key_text(&key, name)) return through_python(op, NULL, args, nargs, kwnames);
      if (name == s_out && args[i] != Py_None) {
        if (!tensor_read(args[i], &out_view)) return through_python(op, NULL, args, nargs, kwnames);
        key_tensor(&key, &out_view, 1);
        out = args[i];
        continue;
      }
    }
    if (!key_value(&key, args[i])) return through_python(op, NULL, args, nargs, kwnames);
  }
  if ((op->guarded ? !dispatch_is_plain() : forward_ad_active()) || !tensor_is_literal(args[0], &view) ||
      tensor_needs_gradient(args[0]) || (out && (!tensor_is_literal(out, &out_view) || tensor_needs_gradient(out))))
    return through_python(op, NULL, args, nargs, kwnames);
  Plan *plan = (Plan *)table_get(&op->table, &key);
  if (!plan) return through_python(op, &key, args, nargs, kwnames);
  Py_INCREF(plan);
  PyObject *result = plan_run(plan, &view, out ? &out : NULL, out ? &out_view : NULL);
  Py_DECREF(plan);
  if (result) {
    op->hits++;
    return result;
  }
  return PyErr_Occurred() ? NULL : through_python(op, NULL, args, nargs, kwnames);
}

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"python", "guarded", NULL};
  PyObject *python;
  int guarded;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Op:Operation", names, &python, &guarded)) return NULL;
  Operation *op = (Operation *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (!op) return NULL;
  op->call = operation_vectorcall;
  Py_INCREF(python);
  op->python = python;
  op->guarded = guarded;
  return (PyObject *)op;
}

static PyObject *operation_call(PyObject *self, PyObject *args, PyObject *kwargs) {
  return vector_as_call(operation_vectorcall, self, args, kwargs);
}

static PyObject *remembered(PyObject *self, PyObject *ignored) {
  (void)ignored;
  return PyLong_FromSize_t(((Operation *)self)->table.used);
}

static int operation_traverse(PyObject *self, visitproc visit, void *arg) {
  Operation *op = (Operation *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(op->dict);
  Py_VISIT(op->python);
  return table_visit(&op->table, visit, arg);
}

static int operation_clear(PyObject *self) {
  Operation *op = (Operation *)self;
  Py_CLEAR(op->dict);
  Py_CLEAR(op->python);
  table_clear(&op->table);
  return 0;
}

static void operation_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  operation_clear(self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operation, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Operation, dict), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Operation, hits), READONLY, "Calls that were served from here."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"remembered", remembered, METH_NOARGS, "How many prepared calls are kept."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, operation_new},           {Py_tp_dealloc, operation_dealloc},
    {Py_tp_traverse, operation_traverse}, {Py_tp_clear, operation_clear},
    {Py_tp_call, operation_call},         {Py_tp_members, members},
    {Py_tp_methods, methods},             {0, NULL},
};

static PyType_Spec spec = {
    .name = "aot.loader._native.Operation",
    .basicsize = sizeof(Operation),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int operation_setup(PyObject *module) {
  if (!(s_out = PyUnicode_InternFromString("out"))) return -1;
  return add_type(module, &spec, &operation_type);
}
