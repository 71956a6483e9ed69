/* What the files of the native launcher share. It speaks the stable ABI of CPython 3.10 and later
 * (abi3), the DLPack C exchange API for tensors, and the CUDA driver API through pointers that
 * are looked up at run time: it is compiled against none of torch's and none of CUDA's headers.
 *
 * Everything here runs with the GIL held, except the one driver call that launches.
 */
#ifndef AOT_NATIVE_H
#define AOT_NATIVE_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Vector calls entered the stable ABI by name in 3.12; the bits are those of every release since 3.8. */
typedef PyObject *(*Vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif
#define NARGS(n) ((Py_ssize_t)((n) & ~((size_t)1 << (8 * sizeof(size_t) - 1))))

enum { MAX_ARGS = 96, MAX_PARAMS_BYTES = 4096 + 96 * 8, MAX_NDIM = 64 };

/* ---- tensor.c: tensors as DLPack shows them ---- */

typedef struct {
  void *data;
  int32_t device_type, device;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor; /* dlpack.h, version 1 */

/* Reads a plain torch tensor on the served kind of device: 1, or 0 where it is none (no error set). */
int tensor_read(PyObject *object, DLTensor *out);
/* Whether the stored numbers are what the tensor means: no lazy conjugate, no lazy sign, a dtype that
 * DLPack tells from others. */
int tensor_is_literal(PyObject *object, const DLTensor *tensor);
/* Whether a call on the tensor must go through torch's dispatcher: gradients, and what is active. */
int tensor_needs_gradient(PyObject *object);
int forward_ad_active(void);
int dispatch_is_plain(void);
int tensor_address(const DLTensor *tensor, uint64_t *address);
PyObject *tensor_allocate(PyObject *shape, PyObject *strides, PyObject *dtype);
int tensor_written(PyObject *out);
void *current_stream(int device);
int tensor_setup(PyObject *module);
extern int tensor_configured;

static inline uint64_t tensor_dtype(const DLTensor *t) {
  return (uint64_t)t->code | (uint64_t)t->bits << 8 | (uint64_t)t->lanes << 16;
}

/* ---- driver.c ---- */

typedef struct {
  int (*CtxGetCurrent)(void **);
  int (*StreamIsCapturing)(void *, int *);
  int (*CtxPushCurrent)(void *);
  int (*CtxPopCurrent)(void **);
  int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                      void **, void **);
  int (*LaunchKernelEx)(const void *, void *, void **, void **);
} LaunchApi;
extern LaunchApi cuda;

int driver_launch(void *function, const unsigned grid[3], unsigned block, unsigned shared, void *stream,
                  void **params, unsigned num_ctas);
int driver_setup(PyObject *module);

/* ---- table.c: what was prepared for which call ---- */

typedef struct {
  uint64_t words[640];
  int count, overflow;
} Key;

static inline void key_start(Key *key) { key->count = key->overflow = 0; }

static inline void key_word(Key *key, uint64_t word) {
  if (key->count < (int)(sizeof key->words / sizeof *key->words)) key->words[key->count++] = word;
  else key->overflow = 1;
}

void key_tensor(Key *key, const DLTensor *tensor, int with_shape);
/* Adds a value that is no tensor; 0 where values of its type cannot be compared so (no error set). */
int key_value(Key *key, PyObject *value);
/* Adds a string by its characters; 0 where it has none in UTF-8 (no error set). */
int key_text(Key *key, PyObject *text);

typedef struct Slot Slot;
typedef struct {
  Slot *slots;
  size_t size, used;
  unsigned long generation;
} Table;

/* Choices that one table remembers. A service whose shapes never repeat must not grow for ever. */
enum { TABLE_MOST = 4096 };
/* Raised whenever what was prepared may be wrong now: another bundle, backend or policy, a fork. */
extern unsigned long generation;

PyObject *table_get(Table *table, const Key *key); /* borrowed, or NULL without an error */
/* Keeps the value, unless it was prepared in a generation that is over. */
int table_put(Table *table, const Key *key, PyObject *value, unsigned long prepared_in);
void table_clear(Table *table);
int table_visit(Table *table, visitproc visit, void *arg);
int table_setup(PyObject *module);

/* ---- plan.c: a prepared call ---- */

enum { SOURCE_COUNTERS = -1, SOURCE_PARTIALS = -2, SOURCE_PARTIAL_INDICES = -3 };

typedef struct {
  uint32_t offset;
  int16_t source;
  uint8_t aligned;
} Patch;

typedef struct {
  uint64_t dtype;
  int32_t ndim; /* -1: any shape */
  int64_t *sizes; /* shape, then strides */
  uint64_t extent; /* bytes from the first to behind the last element */
} Signature;

typedef struct {
  PyObject *shape, *strides, *dtype;
} Output;

typedef struct {
  PyObject_HEAD
  unsigned long long hits, launches;
} Tally;

typedef struct {
  PyObject_HEAD
  Vectorcall call;
  void *function, *context, *stream;
  int device, fixed_stream;
  unsigned grid[3], block, shared, num_ctas;
  char *params;
  int params_size, n_params, n_patches, n_inputs, n_outputs;
  uint32_t *offsets;
  Patch *patches;
  Signature *signatures; /* of the inputs, then of the outputs */
  Output *outputs;
  int64_t counters, partial_bytes, index_bytes;
  Tally *tallies[2]; /* the kernel's and the bundle's */
  PyObject *fallback, *fail, *wrap, *entry, *meta, *info;
} Plan;

extern PyTypeObject *plan_type;

/* The status of a launch: a CUDA error number, or one of these. */
enum { LAUNCH_ELSEWHERE = -1, LAUNCH_RAISED = -2 };

/* Launches with the addresses of its sources, on the plan's grid or another one. */
int plan_launch(Plan *plan, const uint64_t *sources, const unsigned grid[3]);
/* Counts a call that was served, for a grid without programs without a launch. */
void plan_count(Plan *plan, int launched);
/* Raises the error of a status; NULL. */
PyObject *plan_fail(Plan *plan, int status);
/* An op's call: allocates what is not given, launches, returns the result; NULL without an error where
 * the call has to be made in Python. `given` are the outputs or NULL. */
PyObject *plan_run(Plan *plan, const DLTensor *input, PyObject *const *given, const DLTensor *given_views);

int plan_setup(PyObject *module);

/* ---- operation.c, kernel.c ---- */
int operation_setup(PyObject *module);
int kernel_setup(PyObject *module);

extern int enabled; /* 0: every call takes the way through Python */

PyObject *vector_as_call(Vectorcall call, PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *call_vector(PyObject *callable, PyObject *first, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames);
int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);

#endif
