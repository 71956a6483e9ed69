/* A hash table from the words of a call to what was prepared for it. */
#include "native.h"

struct Slot {
  uint64_t hash;
  uint64_t *words; /* NULL: free */
  int count;
  PyObject *value;
};

unsigned long generation = 1;

/* What kind of value a word stands for, so that 1, True, None and an address never look alike. */
enum { TAG_TENSOR = 1, TAG_NONE, TAG_FALSE, TAG_TRUE, TAG_INT, TAG_FLOAT, TAG_SEQUENCE, TAG_DTYPE, TAG_TEXT };

void key_tensor(Key *key, const DLTensor *tensor, int with_shape) {
  uint64_t address;
  tensor_address(tensor, &address);
  int ndim = with_shape ? tensor->ndim : 0;
  key_word(key, (uint64_t)TAG_TENSOR | (uint64_t)ndim << 8 | (uint64_t)(address % 16 == 0) << 16 |
                    (uint64_t)(address == 0) << 17 | (uint64_t)(uint32_t)tensor->device << 32);
  key_word(key, tensor_dtype(tensor));
  for (int i = 0; i < ndim; i++) {
    key_word(key, (uint64_t)tensor->shape[i]);
    key_word(key, (uint64_t)tensor->strides[i]);
  }
}

static int key_integer(Key *key, PyObject *value) {
  int overflow;
  long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow || (number == -1 && PyErr_Occurred())) {
    PyErr_Clear();
    return 0;
  }
  key_word(key, TAG_INT);
  key_word(key, (uint64_t)number);
  return 1;
}

int key_text(Key *key, PyObject *text) {
  Py_ssize_t size;
  const char *characters = PyUnicode_AsUTF8AndSize(text, &size);
  if (!characters) {
    PyErr_Clear();
    return 0;
  }
  key_word(key, TAG_TEXT | (uint64_t)size << 8);
  for (Py_ssize_t i = 0; i < size; i += 8) {
    uint64_t word = 0;
    memcpy(&word, characters + i, (size_t)(size - i < 8 ? size - i : 8));
    key_word(key, word);
  }
  return 1;
}

static PyTypeObject *dtype_class; /* torch.dtype: its objects are the same for ever */

int key_value(Key *key, PyObject *value) {
  if (value == Py_None) key_word(key, TAG_NONE);
  else if (value == Py_False) key_word(key, TAG_FALSE);
  else if (value == Py_True) key_word(key, TAG_TRUE);
  else if (PyLong_CheckExact(value)) return key_integer(key, value);
  else if (PyFloat_CheckExact(value)) {
    double number = PyFloat_AsDouble(value);
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    key_word(key, TAG_FLOAT);
    key_word(key, bits);
  } else if (PyUnicode_CheckExact(value)) {
    return key_text(key, value);
  } else if (Py_TYPE(value) == dtype_class) {
    key_word(key, TAG_DTYPE);
    key_word(key, (uint64_t)(uintptr_t)value);
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    int tuple = PyTuple_CheckExact(value);
    Py_ssize_t size = tuple ? PyTuple_Size(value) : PyList_Size(value);
    key_word(key, TAG_SEQUENCE | (uint64_t)tuple << 8 | (uint64_t)size << 16);
    for (Py_ssize_t i = 0; i < size; i++) {
      PyObject *item = tuple ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i);
      if (!item || !PyLong_CheckExact(item) || !key_integer(key, item)) {
        PyErr_Clear();
        return 0;
      }
    }
  } else {
    return 0;
  }
  return 1;
}

/* The finalizer of MurmurHash3 (public domain, Austin Appleby) over each word. */
static uint64_t hash_of(const Key *key) {
  uint64_t hash = 0x9e3779b97f4a7c15u ^ (uint64_t)key->count;
  for (int i = 0; i < key->count; i++) {
    hash ^= key->words[i];
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  }
  hash *= 0xc4ceb9fe1a85ec53u;
  return hash ^ hash >> 33;
}

/* The slot that holds the key, or the free one where it belongs. */
static Slot *find(Slot *slots, size_t size, uint64_t hash, const Key *key) {
  for (size_t at = hash & (size - 1);; at = (at + 1) & (size - 1)) {
    Slot *slot = &slots[at];
    if (!slot->words) return slot;
    if (slot->hash == hash && slot->count == key->count &&
        !memcmp(slot->words, key->words, (size_t)key->count * sizeof *key->words))
      return slot;
  }
}

PyObject *table_get(Table *table, const Key *key) {
  if (key->overflow) return NULL;
  if (table->generation != generation) {
    table->generation = generation;
    table_clear(table);
  }
  if (!table->used) return NULL;
  Slot *slot = find(table->slots, table->size, hash_of(key), key);
  return slot->words ? slot->value : NULL;
}

static int grow(Table *table) {
  size_t size = table->size ? table->size * 2 : 16;
  Slot *slots = PyMem_Calloc(size, sizeof *slots);
  if (!slots) return -1;
  for (size_t i = 0; i < table->size; i++) {
    Slot *old = &table->slots[i];
    if (!old->words) continue;
    size_t at = old->hash & (size - 1);
    while (slots[at].words) at = (at + 1) & (size - 1);
    slots[at] = *old;
  }
  PyMem_Free(table->slots);
  table->slots = slots;
  table->size = size;
  return 0;
}

int table_put(Table *table, const Key *key, PyObject *value, unsigned long prepared_in) {
  if (key->overflow) return 0;
  /* Dropping a value runs code of others, which may use this table or end the generation. */
  if (table->generation != generation || table->used >= TABLE_MOST) {
    table->generation = generation;
    table_clear(table);
  }
  if (prepared_in != generation || table->generation != generation) return 0;
  if (table->used * 2 >= table->size && grow(table)) {
    PyErr_NoMemory();
    return -1;
  }
  uint64_t hash = hash_of(key);
  Slot *slot = find(table->slots, table->size, hash, key);
  if (slot->words) {
    PyObject *before = slot->value;
    Py_INCREF(value);
    slot->value = value;
    Py_DECREF(before);
    return 0;
  }
  size_t bytes = (size_t)key->count * sizeof *key->words;
  uint64_t *words = PyMem_Malloc(bytes ? bytes : 1);
  if (!words) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(words, key->words, bytes);
  Py_INCREF(value);
  *slot = (Slot){.hash = hash, .words = words, .count = key->count, .value = value};
  table->used++;
  return 0;
}

void table_clear(Table *table) {
  Slot *slots = table->slots;
  size_t size = table->size;
  table->slots = NULL;
  table->size = table->used = 0;
  for (size_t i = 0; i < size; i++) {
    if (!slots[i].words) continue;
    PyMem_Free(slots[i].words);
    Py_DECREF(slots[i].value);
  }
  PyMem_Free(slots);
}

int table_visit(Table *table, visitproc visit, void *arg) {
  for (size_t i = 0; i < table->size; i++)
    if (table->slots[i].words) Py_VISIT(table->slots[i].value);
  return 0;
}

static PyObject *invalidate(PyObject *self, PyObject *ignored) {
  (void)self, (void)ignored;
  generation++;
  Py_RETURN_NONE;
}

static PyObject *compare_dtypes(PyObject *self, PyObject *type) {
  (void)self;
  Py_INCREF(type);
  dtype_class = (PyTypeObject *)type;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"invalidate", invalidate, METH_NOARGS, "Forget every prepared call, in every table, at its next use."},
    {"compare_dtypes", compare_dtypes, METH_O, "Take torch.dtype, whose objects are compared by identity."},
    {NULL, NULL, 0, NULL},
};

int table_setup(PyObject *module) { return PyModule_AddFunctions(module, methods); }
