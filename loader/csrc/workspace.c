/* Memory that split reductions share: zeroed counters and partial results, one buffer a device and
 * stream. Launches of one stream follow each other, and each leaves its counters at zero.
 */
#include "native.h"
#include "workspace.h"

typedef struct {
  int device;
  void *stream;
  Workspace memory;
} Held;

static Held *held;
static size_t n_held;
static PyObject *provide;

int workspace_get(int device, void *stream, int64_t counters, int64_t bytes, Workspace *out) {
  Held *found = NULL;
  for (size_t i = 0; i < n_held && !found; i++)
    if (held[i].stream == stream && held[i].device == device) found = &held[i];
  if (found && found->memory.n_counters >= counters && found->memory.bytes >= bytes) {
    *out = found->memory;
    Py_INCREF(out->owner);
    return 0;
  }
  if (found) {
    counters = counters > found->memory.n_counters ? counters : found->memory.n_counters;
    bytes = bytes > found->memory.bytes ? bytes : found->memory.bytes;
  }
  PyObject *made = PyObject_CallFunction(provide, "iKLL", device, (unsigned long long)(uintptr_t)stream,
                                         (long long)counters, (long long)bytes);
  if (!made) return -1;
  unsigned long long zeros, partials;
  long long n_counters, size;
  PyObject *owner;
  if (!PyArg_ParseTuple(made, "KLKLO", &zeros, &n_counters, &partials, &size, &owner)) {
    Py_DECREF(made);
    return -1;
  }
  Py_INCREF(owner);
  Py_DECREF(made);
  /* Asking ran Python code, and another thread may have asked meanwhile. */
  found = NULL;
  for (size_t i = 0; i < n_held && !found; i++)
    if (held[i].stream == stream && held[i].device == device) found = &held[i];
  PyObject *before = found ? found->memory.owner : NULL;
  if (!found) {
    Held *more = PyMem_Realloc(held, (n_held + 1) * sizeof *held);
    if (!more) {
      Py_DECREF(owner);
      PyErr_NoMemory();
      return -1;
    }
    held = more;
    found = &held[n_held++];
  }
  *found = (Held){.device = device, .stream = stream, .memory = {zeros, partials, n_counters, size, owner}};
  *out = found->memory;
  Py_INCREF(owner);
  /* A launch that still uses the buffer before is ahead on the same stream of whoever gets its
   * memory next, or holds the owner itself. */
  Py_XDECREF(before);
  return 0;
}

static PyObject *provide_workspace(PyObject *self, PyObject *callable) {
  (void)self;
  Py_INCREF(callable);
  Py_XDECREF(provide);
  provide = callable;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"provide_workspace", provide_workspace, METH_O, "Take the function that allocates workspaces."},
    {NULL, NULL, 0, NULL},
};

int workspace_setup(PyObject *module) { return PyModule_AddFunctions(module, methods); }
