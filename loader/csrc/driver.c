/* The CUDA driver API, looked up in libcuda.so.1 when it is first asked for. Every function returns
 * the driver's status first; loader/driver.py checks it and writes the errors.
 */
#include "native.h"

#include <dlfcn.h>

LaunchApi cuda;

static int (*get_address)(const char *, void **, int, uint64_t, int *);

/* The oldest version whose signatures these are. */
enum { CUDA_VERSION = 12000 };

static struct {
  int (*Init)(unsigned);
  int (*DriverGetVersion)(int *);
  int (*DeviceGetCount)(int *);
  int (*DeviceGet)(int *, int);
  int (*DeviceGetName)(char *, int, int);
  int (*DeviceGetAttribute)(int *, int, int);
  int (*DevicePrimaryCtxRetain)(void **, int);
  int (*CtxGetDevice)(int *);
  int (*PointerGetAttribute)(void *, int, uint64_t);
  int (*StreamGetCaptureInfo)(void *, int *, uint64_t *, void *, void *, void *, void *);
  int (*LibraryLoadData)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
  int (*LibraryGetKernel)(void **, void *, const char *);
  int (*KernelGetFunction)(void **, void *);
  int (*KernelSetAttribute)(int, int, void *, int);
  int (*MemAllocAsync)(uint64_t *, size_t, void *);
  int (*MemFreeAsync)(uint64_t, void *);
  int (*MemsetD32Async)(uint64_t, unsigned, size_t, void *);
  int (*GetErrorName)(int, const char **);
} api;

static PyObject *open_driver(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  static const struct {
    const char *name;
    void *to;
  } wanted[] = {
      {"cuInit", &api.Init},
      {"cuDriverGetVersion", &api.DriverGetVersion},
      {"cuDeviceGetCount", &api.DeviceGetCount},
      {"cuDeviceGet", &api.DeviceGet},
      {"cuDeviceGetName", &api.DeviceGetName},
      {"cuDeviceGetAttribute", &api.DeviceGetAttribute},
      {"cuDevicePrimaryCtxRetain", &api.DevicePrimaryCtxRetain},
      {"cuCtxGetCurrent", &cuda.CtxGetCurrent},
      {"cuCtxGetDevice", &api.CtxGetDevice},
      {"cuCtxPushCurrent", &cuda.CtxPushCurrent},
      {"cuCtxPopCurrent", &cuda.CtxPopCurrent},
      {"cuPointerGetAttribute", &api.PointerGetAttribute},
      {"cuStreamIsCapturing", &cuda.StreamIsCapturing},
      {"cuStreamGetCaptureInfo", &api.StreamGetCaptureInfo},
      {"cuLibraryLoadData", &api.LibraryLoadData},
      {"cuLibraryGetKernel", &api.LibraryGetKernel},
      {"cuKernelGetFunction", &api.KernelGetFunction},
      {"cuKernelSetAttribute", &api.KernelSetAttribute},
      {"cuLaunchKernel", &cuda.LaunchKernel},
      {"cuLaunchKernelEx", &cuda.LaunchKernelEx},
      {"cuMemAllocAsync", &api.MemAllocAsync},
      {"cuMemFreeAsync", &api.MemFreeAsync},
      {"cuMemsetD32Async", &api.MemsetD32Async},
      {"cuGetErrorName", &api.GetErrorName},
  };
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    PyErr_SetString(PyExc_OSError, dlerror());
    return NULL;
  }
  *(void **)&get_address = dlsym(library, "cuGetProcAddress_v2");
  if (!get_address) {
    PyErr_SetString(PyExc_OSError, "libcuda.so.1 has no cuGetProcAddress_v2, which CUDA 12 brought");
    return NULL;
  }
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *found = NULL;
    int how = 0;
    if (get_address(wanted[i].name, &found, CUDA_VERSION, 0, &how) != 0 || !found) {
      PyErr_Format(PyExc_OSError, "libcuda.so.1 has no %s", wanted[i].name);
      return NULL;
    }
    memcpy(wanted[i].to, &found, sizeof found);
  }
  return PyLong_FromLong(api.Init(0));
}

static PyObject *closed(void) {
  PyErr_SetString(PyExc_RuntimeError, "the driver was not opened");
  return NULL;
}

static PyObject *status_and(int status, unsigned long long value) {
  return Py_BuildValue("iK", status, value);
}

static void *pointer(unsigned long long handle) { return (void *)(uintptr_t)handle; }

/* The arguments of a driver function that takes numbers alone. */
#define NUMBERS(format, ...)                                       \
  (void)self;                                                      \
  if (!api.Init) return closed();                                  \
  if (!PyArg_ParseTuple(args, format, __VA_ARGS__)) return NULL

static PyObject *driver_version(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  int version = 0;
  if (!api.Init) return closed();
  int status = api.DriverGetVersion(&version);
  return status_and(status, (unsigned)version);
}

static PyObject *device_count(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  int count = 0;
  if (!api.Init) return closed();
  int status = api.DeviceGetCount(&count);
  return status_and(status, (unsigned)count);
}

static PyObject *device_get(PyObject *self, PyObject *args) {
  int ordinal, device = 0;
  NUMBERS("i", &ordinal);
  int status = api.DeviceGet(&device, ordinal);
  return status_and(status, (unsigned)device);
}

static PyObject *device_name(PyObject *self, PyObject *args) {
  int device;
  char name[256] = "";
  NUMBERS("i", &device);
  int status = api.DeviceGetName(name, sizeof name, device);
  return Py_BuildValue("iy", status, name);
}

static PyObject *device_attribute(PyObject *self, PyObject *args) {
  int attribute, device, value = 0;
  NUMBERS("ii", &attribute, &device);
  int status = api.DeviceGetAttribute(&value, attribute, device);
  return Py_BuildValue("ii", status, value);
}

static PyObject *primary_context(PyObject *self, PyObject *args) {
  int device;
  void *context = NULL;
  NUMBERS("i", &device);
  int status = api.DevicePrimaryCtxRetain(&context, device);
  return status_and(status, (uintptr_t)context);
}

static PyObject *current_context(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  void *context = NULL;
  if (!api.Init) return closed();
  int status = cuda.CtxGetCurrent(&context);
  return status_and(status, (uintptr_t)context);
}

static PyObject *context_device(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  int device = 0;
  if (!api.Init) return closed();
  int status = api.CtxGetDevice(&device);
  return status_and(status, (unsigned)device);
}

static PyObject *push_context(PyObject *self, PyObject *args) {
  unsigned long long context;
  NUMBERS("K", &context);
  return PyLong_FromLong(cuda.CtxPushCurrent(pointer(context)));
}

static PyObject *pop_context(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  void *context;
  if (!api.Init) return closed();
  return PyLong_FromLong(cuda.CtxPopCurrent(&context));
}

static PyObject *pointer_device(PyObject *self, PyObject *args) {
  enum { DEVICE_ORDINAL = 9 };
  unsigned long long address;
  int device = -1;
  NUMBERS("K", &address);
  int status = api.PointerGetAttribute(&device, DEVICE_ORDINAL, address);
  return Py_BuildValue("ii", status, device);
}

static PyObject *is_capturing(PyObject *self, PyObject *args) {
  unsigned long long stream;
  int capturing = 0;
  NUMBERS("K", &stream);
  int status = cuda.StreamIsCapturing(pointer(stream), &capturing);
  return Py_BuildValue("ii", status, capturing);
}

static PyObject *capture_id(PyObject *self, PyObject *args) {
  unsigned long long stream;
  int capturing = 0;
  uint64_t id = 0;
  NUMBERS("K", &stream);
  int status = api.StreamGetCaptureInfo(pointer(stream), &capturing, &id, NULL, NULL, NULL, NULL);
  return status_and(status, id);
}

static PyObject *load_library(PyObject *self, PyObject *args) {
  const char *image;
  Py_ssize_t size;
  void *library = NULL;
  int status;
  NUMBERS("y#", &image, &size);
  Py_BEGIN_ALLOW_THREADS
  status = api.LibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
  Py_END_ALLOW_THREADS
  return status_and(status, (uintptr_t)library);
}

static PyObject *library_kernel(PyObject *self, PyObject *args) {
  unsigned long long library;
  const char *symbol;
  void *kernel = NULL;
  int status;
  NUMBERS("Ky", &library, &symbol);
  Py_BEGIN_ALLOW_THREADS
  status = api.LibraryGetKernel(&kernel, pointer(library), symbol);
  Py_END_ALLOW_THREADS
  return status_and(status, (uintptr_t)kernel);
}

static PyObject *kernel_function(PyObject *self, PyObject *args) {
  unsigned long long kernel;
  void *function = NULL;
  int status;
  NUMBERS("K", &kernel);
  Py_BEGIN_ALLOW_THREADS
  status = api.KernelGetFunction(&function, pointer(kernel));
  Py_END_ALLOW_THREADS
  return status_and(status, (uintptr_t)function);
}

static PyObject *set_kernel_attribute(PyObject *self, PyObject *args) {
  int attribute, value, device;
  unsigned long long kernel;
  NUMBERS("iiKi", &attribute, &value, &kernel, &device);
  return PyLong_FromLong(api.KernelSetAttribute(attribute, value, pointer(kernel), device));
}

static PyObject *allocate_async(PyObject *self, PyObject *args) {
  unsigned long long size, stream;
  uint64_t address = 0;
  NUMBERS("KK", &size, &stream);
  int status = api.MemAllocAsync(&address, size, pointer(stream));
  return status_and(status, address);
}

static PyObject *free_async(PyObject *self, PyObject *args) {
  unsigned long long address, stream;
  NUMBERS("KK", &address, &stream);
  return PyLong_FromLong(api.MemFreeAsync(address, pointer(stream)));
}

static PyObject *zero_async(PyObject *self, PyObject *args) {
  unsigned long long address, words, stream;
  NUMBERS("KKK", &address, &words, &stream);
  return PyLong_FromLong(api.MemsetD32Async(address, 0, words, pointer(stream)));
}

static PyObject *error_name(PyObject *self, PyObject *args) {
  int status;
  const char *name = NULL;
  NUMBERS("i", &status);
  if (api.GetErrorName(status, &name) != 0 || !name) name = "an unknown CUDA error";
  return PyUnicode_FromString(name);
}

/* cuda.h: CUlaunchAttribute and CUlaunchConfig. */
typedef struct {
  unsigned id;
  char pad[4];
  union {
    char bytes[64];
    unsigned words[3];
  } value;
} LaunchAttribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  LaunchAttribute *attributes;
  unsigned count;
} LaunchConfig;

int driver_launch(void *function, const unsigned grid[3], unsigned block, unsigned shared, void *stream,
                  void **params, unsigned num_ctas) {
  if (num_ctas == 1)
    return cuda.LaunchKernel(function, grid[0], grid[1], grid[2], block, 1, 1, shared, stream, params, NULL);
  enum { CLUSTER_DIMENSION = 4, CLUSTER_POLICY = 5, POLICY_SPREAD = 1 };
  LaunchAttribute attributes[2] = {{.id = CLUSTER_DIMENSION, .value.words = {num_ctas, 1, 1}},
                                   {.id = CLUSTER_POLICY, .value.words = {POLICY_SPREAD}}};
  /* The blocks of a program lie along x, as Triton's own launcher puts them. */
  LaunchConfig config = {.grid = {grid[0] * num_ctas, grid[1], grid[2]},
                         .block = {block, 1, 1},
                         .shared = shared,
                         .stream = stream,
                         .attributes = attributes,
                         .count = 2};
  return cuda.LaunchKernelEx(&config, function, params, NULL);
}

static PyObject *launch(PyObject *self, PyObject *args) {
  unsigned long long function, stream, params;
  unsigned grid[3], block, shared, num_ctas;
  int status;
  NUMBERS("K(III)IIKKI", &function, &grid[0], &grid[1], &grid[2], &block, &shared, &stream, &params,
          &num_ctas);
  Py_BEGIN_ALLOW_THREADS
  status = driver_launch(pointer(function), grid, block, shared, pointer(stream), pointer(params), num_ctas);
  Py_END_ALLOW_THREADS
  return PyLong_FromLong(status);
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_NOARGS, "Open libcuda.so.1; the status of cuInit. Raises OSError."},
    {"driver_version", driver_version, METH_NOARGS, NULL},
    {"device_count", device_count, METH_NOARGS, NULL},
    {"device_get", device_get, METH_VARARGS, NULL},
    {"device_name", device_name, METH_VARARGS, NULL},
    {"device_attribute", device_attribute, METH_VARARGS, NULL},
    {"primary_context", primary_context, METH_VARARGS, NULL},
    {"current_context", current_context, METH_NOARGS, NULL},
    {"context_device", context_device, METH_NOARGS, NULL},
    {"push_context", push_context, METH_VARARGS, NULL},
    {"pop_context", pop_context, METH_NOARGS, NULL},
    {"pointer_device", pointer_device, METH_VARARGS, NULL},
    {"is_capturing", is_capturing, METH_VARARGS, NULL},
    {"capture_id", capture_id, METH_VARARGS, NULL},
    {"load_library", load_library, METH_VARARGS, NULL},
    {"library_kernel", library_kernel, METH_VARARGS, NULL},
    {"kernel_function", kernel_function, METH_VARARGS, NULL},
    {"set_kernel_attribute", set_kernel_attribute, METH_VARARGS, NULL},
    {"allocate_async", allocate_async, METH_VARARGS, NULL},
    {"free_async", free_async, METH_VARARGS, NULL},
    {"zero_async", zero_async, METH_VARARGS, NULL},
    {"error_name", error_name, METH_VARARGS, NULL},
    {"launch", launch, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int driver_setup(PyObject *module) { return PyModule_AddFunctions(module, methods); }
