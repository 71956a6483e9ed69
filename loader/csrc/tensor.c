/* Tensors as DLPack shows them, and the little that a launch asks of torch besides. */
#include "native.h"

typedef struct ExchangeApi {
  uint32_t major, minor;
  struct ExchangeApi *previous;
  void *allocator, *from_object, *to_object;
  int (*view)(void *object, DLTensor *out);
  int (*stream)(int device_type, int32_t device, void **out);
} ExchangeApi; /* dlpack.h: DLPackExchangeAPI, version 1 */

int tensor_configured = 0;

static ExchangeApi *api;
static int device_type;
static PyObject *tensor_class, *parameter_class, *int8_dtype, *uint8_dtype;
static PyObject *empty_strided, *dispatch_modes, *tracing, *grad_enabled, *increment_version;
static PyObject *forward_ad; /* the dict of torch.autograd.forward_ad */
static PyObject *s_requires_grad, *s_is_neg, *s_is_conj, *s_dtype, *s_is_inference, *s_level;

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5 };

int tensor_read(PyObject *object, DLTensor *out) {
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != tensor_class && type != parameter_class) return 0;
  if (api->view(object, out) != 0) {
    PyErr_Clear();
    return 0;
  }
  return out->device_type == device_type && out->ndim <= MAX_NDIM;
}

/* The truth of an attribute or of a method without arguments; -1 clears the error and says neither. */
static int truth(PyObject *result) {
  if (!result) {
    PyErr_Clear();
    return -1;
  }
  int yes = result == Py_True ? 1 : result == Py_False ? 0 : -1;
  Py_DECREF(result);
  return yes;
}

int tensor_is_literal(PyObject *object, const DLTensor *tensor) {
  switch (tensor->code) {
    case DL_COMPLEX:
      if (truth(PyObject_CallMethodObjArgs(object, s_is_conj, NULL)) != 0) return 0;
      /* fall through */
    case DL_FLOAT:
    case DL_BFLOAT:
      return truth(PyObject_CallMethodObjArgs(object, s_is_neg, NULL)) == 0;
    case DL_INT:
    case DL_UINT: {
      if (tensor->bits != 8) return 1;
      /* torch's int1 to int7 look like int8 here. */
      PyObject *dtype = PyObject_GetAttr(object, s_dtype);
      if (!dtype) {
        PyErr_Clear();
        return 0;
      }
      Py_DECREF(dtype);
      return dtype == (tensor->code == DL_INT ? int8_dtype : uint8_dtype);
    }
    default:
      return 1;
  }
}

int tensor_needs_gradient(PyObject *object) {
  int wanted = truth(PyObject_GetAttr(object, s_requires_grad));
  if (wanted == 0) return 0;
  return truth(PyObject_CallObject(grad_enabled, NULL)) != 0;
}

int forward_ad_active(void) {
  PyObject *level = PyDict_GetItemWithError(forward_ad, s_level);
  long number = level ? PyLong_AsLong(level) : 0;
  PyErr_Clear();
  return number >= 0;
}

int dispatch_is_plain(void) {
  if (forward_ad_active() || truth(PyObject_CallObject(tracing, NULL)) != 0) return 0;
  PyObject *depth = PyObject_CallObject(dispatch_modes, NULL);
  if (!depth) {
    PyErr_Clear();
    return 0;
  }
  long modes = PyLong_AsLong(depth);
  Py_DECREF(depth);
  return modes == 0;
}

int tensor_address(const DLTensor *tensor, uint64_t *address) {
  /* data_ptr() of a tensor without elements is null, whatever its storage. */
  for (int i = 0; i < tensor->ndim; i++)
    if (tensor->shape[i] == 0) {
      *address = 0;
      return 0;
    }
  *address = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
  return 1;
}

PyObject *tensor_allocate(PyObject *shape, PyObject *strides, PyObject *dtype) {
  return PyObject_CallFunctionObjArgs(empty_strided, shape, strides, dtype, NULL);
}

/* A kernel wrote it behind autograd's back; saved tensors must notice. */
int tensor_written(PyObject *out) {
  PyObject *one = PyTuple_Pack(1, out);
  PyObject *done = one ? PyObject_CallFunctionObjArgs(increment_version, one, NULL) : NULL;
  Py_XDECREF(one);
  Py_XDECREF(done);
  if (done) return 0;
  /* An inference tensor has no version to raise. Asking first costs as much as the rest. */
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  int inference = truth(PyObject_CallMethodObjArgs(out, s_is_inference, NULL));
  if (inference != 1) {
    PyErr_Restore(type, value, trace);
    return -1;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return 0;
}

void *current_stream(int device) {
  void *stream = NULL;
  if (device_type != 2) return NULL;
  if (api->stream(device_type, device, &stream) != 0) PyErr_Clear();
  return stream;
}

static PyObject *configure(PyObject *self, PyObject *args, PyObject *kwargs) {
  (void)self;
  static char *names[] = {"capsule", "device_type", "tensor", "parameter", "int8", "uint8", "empty_strided",
                          "dispatch_modes", "tracing", "grad_enabled", "increment_version",
                          "forward_ad", NULL};
  PyObject *capsule, *classes[10];
  int type;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiOOOOOOOOOO:configure", names, &capsule, &type, &classes[0],
                                   &classes[1], &classes[2], &classes[3], &classes[4], &classes[5],
                                   &classes[6], &classes[7], &classes[8], &classes[9]))
    return NULL;
  ExchangeApi *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!found) return NULL;
  while (found && found->major != 1) found = found->previous;
  if (!found || !found->view || !found->stream) {
    PyErr_SetString(PyExc_RuntimeError, "torch offers no DLPack exchange API of version 1");
    return NULL;
  }
  PyObject **kept[] = {&tensor_class, &parameter_class, &int8_dtype,   &uint8_dtype,       &empty_strided,
                       &dispatch_modes, &tracing,         &grad_enabled, &increment_version, &forward_ad};
  for (int i = 0; i < 10; i++) {
    PyObject *before = *kept[i];
    Py_INCREF(classes[i]);
    *kept[i] = classes[i];
    Py_XDECREF(before);
  }
  api = found;
  device_type = type;
  tensor_configured = 1;
  Py_RETURN_NONE;
}

static PyObject *view(PyObject *self, PyObject *object) {
  (void)self;
  DLTensor tensor;
  if (!tensor_configured || !tensor_read(object, &tensor)) Py_RETURN_NONE;
  PyObject *shape = PyTuple_New(tensor.ndim), *strides = PyTuple_New(tensor.ndim);
  for (int i = 0; shape && strides && i < tensor.ndim; i++) {
    PyTuple_SetItem(shape, i, PyLong_FromLongLong(tensor.shape[i]));
    PyTuple_SetItem(strides, i, PyLong_FromLongLong(tensor.strides[i]));
  }
  PyObject *found = NULL;
  if (shape && strides && !PyErr_Occurred())
    found = Py_BuildValue("KiOO", (unsigned long long)tensor_dtype(&tensor), tensor.device, shape, strides);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return found;
}

static PyMethodDef methods[] = {
    {"view", view, METH_O, "(dtype word, device, shape, strides) of a tensor that is served, or None."},
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "Take from torch what launches ask of it."},
    {NULL, NULL, 0, NULL},
};

int tensor_setup(PyObject *module) {
  static const struct {
    PyObject **to;
    const char *text;
  } strings[] = {{&s_requires_grad, "requires_grad"}, {&s_is_neg, "is_neg"},
                 {&s_is_conj, "is_conj"},             {&s_dtype, "dtype"},
                 {&s_is_inference, "is_inference"},   {&s_level, "_current_level"}};
  for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
    if (!(*strings[i].to = PyUnicode_InternFromString(strings[i].text))) return -1;
  return PyModule_AddFunctions(module, methods);
}
