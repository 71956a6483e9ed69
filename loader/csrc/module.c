/* The module: its switch, and what the other files share. */
#include "native.h"
#include "workspace.h"

int enabled = 0;

PyObject *call_vector(PyObject *callable, PyObject *first, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames) {
  PyObject *positional = PyTuple_New(nargs);
  PyObject *keywords = PyDict_New();
  PyObject *result = NULL;
  if (!positional || !keywords) goto done;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    Py_INCREF(args[i]);
    PyTuple_SetItem(positional, i, args[i]);
  }
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_Size(kwnames); i++)
    if (PyDict_SetItem(keywords, PyTuple_GetItem(kwnames, i), args[nargs + i])) goto done;
  if (!first) result = PyObject_Call(callable, positional, keywords);
  else if (first == Py_None) result = PyObject_CallFunctionObjArgs(callable, positional, keywords, NULL);
  else result = PyObject_CallFunctionObjArgs(callable, first, positional, keywords, NULL);
done:
  Py_XDECREF(positional);
  Py_XDECREF(keywords);
  return result;
}

PyObject *vector_as_call(Vectorcall call, PyObject *self, PyObject *args, PyObject *kwargs) {
  Py_ssize_t nargs = PyTuple_Size(args), n_keywords = kwargs ? PyDict_Size(kwargs) : 0;
  PyObject **items = PyMem_Calloc((size_t)(nargs + n_keywords + 1), sizeof *items);
  if (!items) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < nargs; i++) items[i] = PyTuple_GetItem(args, i);
  PyObject *names = n_keywords ? PyTuple_New(n_keywords) : NULL;
  if (n_keywords && !names) {
    PyMem_Free(items);
    return NULL;
  }
  Py_ssize_t at = 0, i = 0;
  PyObject *key, *value;
  while (n_keywords && PyDict_Next(kwargs, &at, &key, &value)) {
    Py_INCREF(key);
    PyUnicode_InternInPlace(&key);
    PyTuple_SetItem(names, i, key);
    items[nargs + i++] = value;
  }
  PyObject *result = call(self, items, (size_t)nargs, names);
  Py_XDECREF(names);
  PyMem_Free(items);
  return result;
}

int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
  *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
  return *type ? PyModule_AddType(module, *type) : -1;
}

static PyObject *enable(PyObject *self, PyObject *on) {
  (void)self;
  int before = enabled, wanted = PyObject_IsTrue(on);
  if (wanted < 0) return NULL;
  enabled = wanted;
  return PyBool_FromLong(before);
}

static PyMethodDef methods[] = {
    {"enable", enable, METH_O, "Serve calls from here (True) or all through Python; what it was before."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "aot.loader._native", .m_size = -1, .m_methods = methods,
    .m_doc = "Prepared calls in native code; aot.loader.native is the door.",
};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (tensor_setup(module) || driver_setup(module) || table_setup(module) || workspace_setup(module) ||
      plan_setup(module) || operation_setup(module) || kernel_setup(module)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
