#ifndef AOT_WORKSPACE_H
#define AOT_WORKSPACE_H

typedef struct {
  uint64_t counters, partials; /* addresses */
  int64_t n_counters, bytes;
  PyObject *owner; /* whoever gets a workspace holds this until its launch is queued */
} Workspace;

/* At least `counters` zeroed int32 and `bytes` bytes for launches ordered by the stream, with a new
 * reference to their owner; -1 with an error. */
int workspace_get(int device, void *stream, int64_t counters, int64_t bytes, Workspace *out);
int workspace_setup(PyObject *module);

#endif
