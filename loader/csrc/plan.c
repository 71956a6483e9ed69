/* A prepared call: everything worked out once, launched with other addresses each time. */
#include "native.h"
#include "workspace.h"

PyTypeObject *plan_type;
static PyTypeObject *tally_type;

enum { PARTIAL_ALIGN = 256 };

/* ---- making one ---- */

static int read_signature(PyObject *item, Signature *out) {
  unsigned long long dtype, extent;
  PyObject *shape, *strides;
  if (!PyArg_ParseTuple(item, "KOOK", &dtype, &shape, &strides, &extent)) return -1;
  *out = (Signature){.dtype = dtype, .ndim = -1, .extent = extent};
  if (shape == Py_None) return 0;
  Py_ssize_t ndim = PyTuple_Size(shape);
  if (ndim < 0 || PyTuple_Size(strides) != ndim) {
    PyErr_SetString(PyExc_ValueError, "found a shape and strides of different lengths");
    return -1;
  }
  out->sizes = PyMem_Malloc((size_t)(ndim ? ndim : 1) * 2 * sizeof *out->sizes);
  if (!out->sizes) return PyErr_NoMemory(), -1;
  out->ndim = (int32_t)ndim;
  for (Py_ssize_t i = 0; i < ndim; i++) {
    out->sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    out->sizes[ndim + i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
  }
  return PyErr_Occurred() ? -1 : 0;
}

static int read_tuple(PyObject *tuple, int *count, void **items, size_t size) {
  Py_ssize_t n = PyTuple_Size(tuple);
  if (n < 0) return -1;
  *items = PyMem_Calloc((size_t)(n ? n : 1), size);
  if (!*items) return PyErr_NoMemory(), -1;
  *count = (int)n;
  return 0;
}

static int read_patches(Plan *plan, PyObject *offsets, PyObject *patches) {
  if (read_tuple(offsets, &plan->n_params, (void **)&plan->offsets, sizeof *plan->offsets)) return -1;
  for (int i = 0; i < plan->n_params; i++)
    plan->offsets[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(offsets, i));
  if (PyErr_Occurred()) return -1;
  if (read_tuple(patches, &plan->n_patches, (void **)&plan->patches, sizeof *plan->patches)) return -1;
  for (int i = 0; i < plan->n_patches; i++) {
    int offset, source, aligned;
    if (!PyArg_ParseTuple(PyTuple_GetItem(patches, i), "iip", &offset, &source, &aligned)) return -1;
    plan->patches[i] = (Patch){(uint32_t)offset, (int16_t)source, (uint8_t)aligned};
    if (offset < 0 || offset + 8 > plan->params_size || source >= MAX_ARGS || source < SOURCE_PARTIAL_INDICES) {
      PyErr_SetString(PyExc_ValueError, "found a patch outside of the parameters");
      return -1;
    }
  }
  return 0;
}

static int read_tensors(Plan *plan, PyObject *inputs, PyObject *outputs) {
  Py_ssize_t n_inputs = PyTuple_Size(inputs), n_outputs = PyTuple_Size(outputs);
  if (n_inputs < 0 || n_outputs < 0) return -1;
  plan->signatures = PyMem_Calloc((size_t)(n_inputs + n_outputs + 1), sizeof *plan->signatures);
  plan->outputs = PyMem_Calloc((size_t)(n_outputs + 1), sizeof *plan->outputs);
  if (!plan->signatures || !plan->outputs) return PyErr_NoMemory(), -1;
  if (n_inputs > MAX_ARGS || n_outputs > 2) {
    PyErr_SetString(PyExc_ValueError, "found more tensors than a prepared call takes");
    return -1;
  }
  for (Py_ssize_t i = 0; i < n_inputs; i++, plan->n_inputs++)
    if (read_signature(PyTuple_GetItem(inputs, i), &plan->signatures[i])) return -1;
  for (Py_ssize_t i = 0; i < n_outputs; i++, plan->n_outputs++) {
    PyObject *signature, *dtype;
    if (!PyArg_ParseTuple(PyTuple_GetItem(outputs, i), "OO", &signature, &dtype)) return -1;
    if (read_signature(signature, &plan->signatures[n_inputs + i])) return -1;
    plan->outputs[i] =
        (Output){PyTuple_GetItem(signature, 1), PyTuple_GetItem(signature, 2), dtype};
    Py_INCREF(plan->outputs[i].shape);
    Py_INCREF(plan->outputs[i].strides);
    Py_INCREF(plan->outputs[i].dtype);
  }
  return 0;
}

static PyObject *plan_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"function", "context", "device",   "grid",     "block",         "shared",
                          "num_ctas", "params",  "offsets",  "patches",  "inputs",        "outputs",
                          "fallback", "fail",    "kernel_tally", "bundle_tally", "counters", "partials",
                          "partial_index", "stream", "wrap", "entry",   "meta",     "info",     NULL};
  unsigned long long function, context;
  int device;
  PyObject *grid, *offsets, *patches, *inputs, *outputs, *fallback, *fail, *tallies[2];
  PyObject *stream = Py_None, *wrap = Py_None, *entry = Py_None, *meta = Py_None, *info = Py_None;
  unsigned block, shared, num_ctas;
  const char *params;
  Py_ssize_t params_size;
  long long counters = 0, partials = 0, partial_index = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKiOIIIy#O!O!O!O!OOO!O!|LLLOOOOO:Plan", names, &function, &context,
                                   &device, &grid, &block, &shared, &num_ctas, &params, &params_size,
                                   &PyTuple_Type, &offsets, &PyTuple_Type, &patches, &PyTuple_Type, &inputs,
                                   &PyTuple_Type, &outputs, &fallback, &fail, tally_type, &tallies[0],
                                   tally_type, &tallies[1], &counters, &partials, &partial_index, &stream,
                                   &wrap, &entry, &meta, &info))
    return NULL;
  if (params_size % 8 || params_size + PyTuple_Size(offsets) * 8 > MAX_PARAMS_BYTES) {
    PyErr_SetString(PyExc_ValueError, "found more bytes of parameters than a launch takes, or no whole words");
    return NULL;
  }
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Plan *plan = (Plan *)allocate(type, 0);
  if (!plan) return NULL;
  plan->call = plan_vectorcall;
  plan->function = (void *)(uintptr_t)function;
  plan->context = (void *)(uintptr_t)context;
  plan->device = device;
  plan->block = block;
  plan->shared = shared;
  plan->num_ctas = num_ctas;
  plan->counters = counters;
  plan->partial_bytes = partials;
  plan->index_bytes = partial_index;
  PyObject **kept[] = {&plan->fallback, &plan->fail, &plan->wrap, &plan->entry, &plan->meta, &plan->info};
  PyObject *values[] = {fallback, fail, wrap, entry, meta, info};
  for (int i = 0; i < 6; i++) {
    Py_INCREF(values[i]);
    *kept[i] = values[i];
  }
  for (int i = 0; i < 2; i++) {
    Py_INCREF(tallies[i]);
    plan->tallies[i] = (Tally *)tallies[i];
  }
  plan->fixed_stream = stream != Py_None;
  if (plan->fixed_stream) plan->stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
  plan->params = PyMem_Malloc((size_t)(params_size ? params_size : 1));
  plan->params_size = (int)params_size;
  if (!plan->params) {
    PyErr_NoMemory();
  } else {
    memcpy(plan->params, params, (size_t)params_size);
    if (!PyErr_Occurred() && (grid == Py_None || PyArg_ParseTuple(grid, "III", &plan->grid[0], &plan->grid[1],
                                                                 &plan->grid[2])) &&
        !read_patches(plan, offsets, patches) && !read_tensors(plan, inputs, outputs))
      return (PyObject *)plan;
  }
  Py_DECREF(plan);
  return NULL;
}

/* ---- launching ---- */

static int launch_in_context(Plan *plan, const uint64_t *sources, const unsigned grid[3]) {
  void *stream = plan->fixed_stream ? plan->stream : current_stream(plan->device);
  uint64_t partial_indices = 0;
  Workspace work = {0};
  int status;
  if (plan->counters) {
    int capturing = 0;
    /* A graph owns the memory that its launches use. */
    if (cuda.StreamIsCapturing(stream, &capturing) || capturing) return LAUNCH_ELSEWHERE;
    int64_t bytes = (plan->partial_bytes + PARTIAL_ALIGN - 1) / PARTIAL_ALIGN * PARTIAL_ALIGN;
    if (workspace_get(plan->device, stream, plan->counters, bytes + plan->index_bytes, &work))
      return LAUNCH_RAISED;
    partial_indices = work.partials + (uint64_t)bytes;
  }
  uint64_t buffer[MAX_PARAMS_BYTES / 8];
  char *params = (char *)buffer;
  memcpy(params, plan->params, (size_t)plan->params_size);
  for (int i = 0; i < plan->n_patches; i++) {
    const Patch *patch = &plan->patches[i];
    uint64_t address = patch->source == SOURCE_COUNTERS          ? work.counters
                       : patch->source == SOURCE_PARTIALS        ? work.partials
                       : patch->source == SOURCE_PARTIAL_INDICES ? partial_indices
                                                                 : sources[patch->source];
    if (patch->aligned && address % 16) {
      Py_XDECREF(work.owner);
      return LAUNCH_ELSEWHERE;
    }
    memcpy(params + patch->offset, &address, sizeof address);
  }
  void **addresses = (void **)(params + plan->params_size);
  for (int i = 0; i < plan->n_params; i++) addresses[i] = params + plan->offsets[i];
  /* A full queue waits for the GPU, which may be waiting for a callback that needs the GIL. */
  Py_BEGIN_ALLOW_THREADS
  status = driver_launch(plan->function, grid, plan->block, plan->shared, stream, addresses, plan->num_ctas);
  Py_END_ALLOW_THREADS
  Py_XDECREF(work.owner);
  return status;
}

void plan_count(Plan *plan, int launched) {
  for (int i = 0; i < 2; i++) {
    plan->tallies[i]->hits++;
    plan->tallies[i]->launches += (unsigned)launched;
  }
}

int plan_launch(Plan *plan, const uint64_t *sources, const unsigned grid[3]) {
  void *before = NULL;
  /* Python asks again where the driver refuses to say, and writes the error. */
  if (cuda.CtxGetCurrent(&before)) return LAUNCH_ELSEWHERE;
  if (before == plan->context) {
    int status = launch_in_context(plan, sources, grid);
    if (!status) plan_count(plan, 1);
    return status;
  }
  /* A thread that has not used the device, or used another one last. */
  if (cuda.CtxPushCurrent(plan->context)) return LAUNCH_ELSEWHERE;
  int status = launch_in_context(plan, sources, grid);
  int restored = cuda.CtxPopCurrent(&before);
  if (!status) plan_count(plan, 1);
  return status ? status : restored;
}

PyObject *plan_fail(Plan *plan, int status) {
  if (status != LAUNCH_RAISED) {
    PyObject *none = PyObject_CallFunction(plan->fail, "i", status);
    Py_XDECREF(none);
    if (none) PyErr_SetString(PyExc_SystemError, "a failed launch raised nothing");
  }
  return NULL;
}

static int matches(const Signature *signature, const DLTensor *tensor) {
  if (signature->dtype != tensor_dtype(tensor)) return 0;
  if (signature->ndim < 0) return 1;
  size_t bytes = (size_t)signature->ndim * sizeof *signature->sizes;
  return tensor->ndim == signature->ndim && !memcmp(tensor->shape, signature->sizes, bytes) &&
         !memcmp(tensor->strides, signature->sizes + signature->ndim, bytes);
}

static int overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

PyObject *plan_run(Plan *plan, const DLTensor *input, PyObject *const *given, const DLTensor *given_views) {
  uint64_t sources[3] = {0};
  PyObject *results[2] = {NULL, NULL};
  PyObject *result = NULL;
  int status = LAUNCH_ELSEWHERE;
  tensor_address(input, &sources[0]);
  for (int i = 0; i < plan->n_outputs; i++) {
    const Signature *signature = &plan->signatures[plan->n_inputs + i];
    DLTensor view;
    if (given) {
      view = given_views[i];
      if (!matches(signature, &view)) goto done;
      Py_INCREF(given[i]);
      results[i] = given[i];
    } else {
      results[i] = tensor_allocate(plan->outputs[i].shape, plan->outputs[i].strides, plan->outputs[i].dtype);
      if (!results[i]) {
        status = LAUNCH_RAISED;
        goto done;
      }
      if (!tensor_read(results[i], &view)) goto done;
    }
    /* torch allocates on its current device, which need not be the input's. */
    if (view.device != plan->device) goto done;
    tensor_address(&view, &sources[i + 1]);
    if (given) {
      for (int j = 0; j <= i; j++)
        if (overlap(sources[i + 1], signature->extent, sources[j],
                    plan->signatures[j ? plan->n_inputs + j - 1 : 0].extent))
          goto done;
    }
  }
  status = plan_launch(plan, sources, plan->grid);
  if (status) goto done;
  if (given)
    for (int i = 0; i < plan->n_outputs; i++)
      if (tensor_written(given[i])) {
        status = LAUNCH_RAISED;
        goto done;
      }
  if (plan->n_outputs == 1) {
    result = results[0];
    results[0] = NULL;
  } else {
    result = PyTuple_Pack(2, results[0], results[1]);
    if (result && plan->wrap != Py_None) {
      PyObject *pair = result;
      result = PyObject_CallFunctionObjArgs(plan->wrap, pair, NULL);
      Py_DECREF(pair);
    }
    if (!result) status = LAUNCH_RAISED;
  }
done:
  Py_XDECREF(results[0]);
  Py_XDECREF(results[1]);
  if (status && status != LAUNCH_ELSEWHERE) return plan_fail(plan, status);
  return result;
}

/* ---- calling a held one ---- */

/* The tensors that a held kernel call takes, in the kernel's order. */
static PyObject *call_kernel(Plan *plan, PyObject *const *args, Py_ssize_t nargs) {
  uint64_t sources[MAX_ARGS];
  if (nargs != plan->n_inputs) return NULL;
  for (Py_ssize_t i = 0; i < nargs; i++) {
    DLTensor view;
    if (!tensor_read(args[i], &view) || view.device != plan->device || !matches(&plan->signatures[i], &view) ||
        !tensor_is_literal(args[i], &view))
      return NULL;
    tensor_address(&view, &sources[i]);
  }
  int status = plan_launch(plan, sources, plan->grid);
  if (status == LAUNCH_ELSEWHERE) return NULL;
  if (status) return plan_fail(plan, status);
  Py_INCREF(plan->entry);
  return plan->entry;
}

static PyObject *s_out;

static PyObject *call_op(Plan *plan, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  DLTensor view, out;
  PyObject *given = NULL;
  Py_ssize_t n_keywords = kwnames ? PyTuple_Size(kwnames) : 0;
  if (nargs != 1 || n_keywords > 1) return NULL;
  if (n_keywords == 1) {
    if (PyTuple_GetItem(kwnames, 0) != s_out || plan->n_outputs != 1) return NULL;
    if (args[1] != Py_None) given = args[1];
  }
  if (!tensor_read(args[0], &view) || view.device != plan->device || !matches(&plan->signatures[0], &view) ||
      !tensor_is_literal(args[0], &view) || tensor_needs_gradient(args[0]) || forward_ad_active())
    return NULL;
  if (!given) return plan_run(plan, &view, NULL, NULL);
  if (!tensor_read(given, &out) || !tensor_is_literal(given, &out) || tensor_needs_gradient(given)) return NULL;
  return plan_run(plan, &view, &given, &out);
}

static PyObject *plan_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
  Plan *plan = (Plan *)self;
  Py_ssize_t nargs = NARGS(nargsf);
  PyObject *result = NULL;
  Py_INCREF(self);
  if (enabled && tensor_configured) {
    if (plan->n_outputs) result = call_op(plan, args, nargs, kwnames);
    else if (!kwnames || PyTuple_Size(kwnames) == 0) result = call_kernel(plan, args, nargs);
  }
  if (!result && !PyErr_Occurred()) result = call_vector(plan->fallback, NULL, args, nargs, kwnames);
  Py_DECREF(self);
  return result;
}

static PyObject *plan_call(PyObject *self, PyObject *args, PyObject *kwargs) {
  return vector_as_call(plan_vectorcall, self, args, kwargs);
}

static PyObject *plan_repr(PyObject *self) { return PyObject_Repr(((Plan *)self)->fallback); }

static int plan_traverse(PyObject *self, visitproc visit, void *arg) {
  Plan *plan = (Plan *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(plan->fallback);
  Py_VISIT(plan->fail);
  Py_VISIT(plan->wrap);
  Py_VISIT(plan->entry);
  Py_VISIT(plan->meta);
  Py_VISIT(plan->info);
  return 0;
}

static int plan_clear(PyObject *self) {
  Plan *plan = (Plan *)self;
  Py_CLEAR(plan->fallback);
  Py_CLEAR(plan->fail);
  Py_CLEAR(plan->wrap);
  Py_CLEAR(plan->entry);
  Py_CLEAR(plan->meta);
  Py_CLEAR(plan->info);
  return 0;
}

static void plan_dealloc(PyObject *self) {
  Plan *plan = (Plan *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  plan_clear(self);
  for (int i = 0; i < 2; i++) Py_XDECREF((PyObject *)plan->tallies[i]);
  for (int i = 0; i < plan->n_inputs + plan->n_outputs; i++) PyMem_Free(plan->signatures[i].sizes);
  for (int i = 0; i < plan->n_outputs; i++) {
    Py_DECREF(plan->outputs[i].shape);
    Py_DECREF(plan->outputs[i].strides);
    Py_DECREF(plan->outputs[i].dtype);
  }
  PyMem_Free(plan->signatures);
  PyMem_Free(plan->outputs);
  PyMem_Free(plan->patches);
  PyMem_Free(plan->offsets);
  PyMem_Free(plan->params);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Plan, call), READONLY, NULL},
    {"entry", T_OBJECT, offsetof(Plan, entry), READONLY, "The variant and its binary."},
    {"info", T_OBJECT, offsetof(Plan, info), READONLY, "What the call was prepared for."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, plan_new},           {Py_tp_dealloc, plan_dealloc}, {Py_tp_traverse, plan_traverse},
    {Py_tp_clear, plan_clear},       {Py_tp_call, plan_call},       {Py_tp_repr, plan_repr},
    {Py_tp_members, members},        {0, NULL},
};

static PyType_Spec spec = {
    .name = "aot.loader._native.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = slots,
};

static PyMemberDef tally_members[] = {
    {"hits", T_ULONGLONG, offsetof(Tally, hits), READONLY, "Calls that native code served."},
    {"launches", T_ULONGLONG, offsetof(Tally, launches), READONLY, "Those of them that launched."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot tally_slots[] = {{Py_tp_members, tally_members}, {0, NULL}};

static PyType_Spec tally_spec = {
    .name = "aot.loader._native.Tally",
    .basicsize = sizeof(Tally),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = tally_slots,
};

int plan_setup(PyObject *module) {
  if (!(s_out = PyUnicode_InternFromString("out"))) return -1;
  if (add_type(module, &tally_spec, &tally_type)) return -1;
  return add_type(module, &spec, &plan_type);
}
