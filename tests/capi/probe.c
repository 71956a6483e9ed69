/* The C API behind a line of text: each line of stdin is a command and its operands, separated by tabs;
 * each answer is one line, `ok` or `error`, and more fields. A zero pointer, 0, is `-`.
 *
 * Arguments are written NAME=KIND:VALUE, with no name where they go by position: p:DTYPE:ADDRESS (DTYPE ? is
 * none), i: u: b: f: (hexadecimal float), s: (a string), d: (a dtype), n: (None), _: (left out). An option is
 * written as a named argument.
 */
#define AOT_IMPLEMENTATION
#include <stddef.h>
static long allocations_left = -1; /* after so many the memory is used up; -1: never */
static void *limited_calloc(size_t count, size_t size);
#define AOT_CALLOC(count, size) limited_calloc(count, size)
#define AOT_FREE(pointer) free(pointer)
#include "aot.h"
#include <sys/wait.h>

static void *limited_calloc(size_t count, size_t size) {
  if (allocations_left == 0) return NULL;
  if (allocations_left > 0) allocations_left--;
  return calloc(count, size);
}

enum { MAX_FIELDS = 200 };

static char *fields[MAX_FIELDS];
static int n_fields;
static aot_bundle *bundle;
static aot_call *call;
static aot_error error;
static aot_arg args[MAX_FIELDS];

static void escaped(const char *text) {
  for (; *text; text++) {
    if (*text == '\n') printf("\\n");
    else if (*text == '\\') printf("\\\\");
    else putchar(*text);
  }
}

static void answer(aot_status status) {
  static const char *const names[] = {"ok", "usage", "no bundle", "bundle", "launch", "miss", "driver", "memory"};
  if (status == AOT_OK) {
    printf("ok");
    return;
  }
  if (status != error.status) abort();
  printf("error\t%s\t%d\t", names[status], error.driver_code);
  escaped(error.text);
}

static size_t unhex(const char *text, unsigned char *bytes) {
  size_t n = strlen(text) / 2, i;
  for (i = 0; i < n; i++) {
    char digits[3] = {text[2 * i], text[2 * i + 1], 0};
    bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
  }
  return n;
}

/* Read an argument; the strings stay in the line. */
static aot_arg argument(char *text) {
  char *equals = strchr(text, '='), *value = equals + 3;
  aot_arg arg = aot_default();
  switch (equals[1]) {
    case 'p': {
      char *colon = strchr(value, ':');
      *colon = 0;
      arg = aot_pointer(strtoull(colon + 1, NULL, 0), strcmp(value, "?") ? value : NULL);
      break;
    }
    case 'i': arg = aot_int(strtoll(value, NULL, 10)); break;
    case 'u': arg = aot_uint(strtoull(value, NULL, 10)); break;
    case 'b': arg = aot_bool(atoi(value)); break;
    case 'f': arg = aot_float(strtod(value, NULL)); break;
    case 's': arg = aot_string(value); break;
    case 'd': arg = aot_dtype(value); break;
    case 'n': arg = aot_none(); break;
    default: break;
  }
  *equals = 0;
  return *text ? aot_named(text, arg) : arg;
}

static size_t arguments(int from) {
  size_t n = 0;
  for (; from < n_fields; from++) args[n++] = argument(fields[from]);
  return n;
}

static aot_grid *grid_of(char *text) {
  static aot_grid grid;
  long long x, y, z;
  if (!strcmp(text, "-")) return NULL;
  if (sscanf(text, "%lld,%lld,%lld", &x, &y, &z) != 3) abort();
  grid.x = x;
  grid.y = y;
  grid.z = z;
  return &grid;
}

static aot_stream stream_of(const char *text) { return (aot_stream)(uintptr_t)strtoull(text, NULL, 0); }

static void open_bundle(void) {
  aot_bundle_close(bundle);
  answer(aot_bundle_open(fields[1], &bundle, &error));
}

/* Read everything a bundle has; say how many cubins. */
static void read_all(void) {
  aot_bundle *opened;
  aot_status status = aot_bundle_open(fields[1], &opened, &error);
  size_t k, t, n = 0;
  uint64_t e;
  if (status != AOT_OK) {
    answer(status);
    return;
  }
  for (k = 0; k < opened->manifest.n_kernels && status == AOT_OK; k++)
    for (t = 0; t < opened->manifest.kernels[k].n_tables && status == AOT_OK; t++) {
      aot__table *table = opened->manifest.kernels[k].tables + t;
      const aot__entry *entries = aot__table_entries(opened, table, &error);
      if (!entries) status = error.status;
      for (e = 0; entries && e < table->count && status == AOT_OK; e++) {
        char *cubin = aot__cubin(opened, entries + e, &error);
        if (cubin) n++;
        else status = error.status;
        free(cubin);
      }
    }
  answer(status);
  if (status == AOT_OK) printf("\t%zu", n);
  aot_bundle_close(opened);
}

/* select KERNEL CAPABILITY MAX_SHARED ARGUMENT...: what is left out is unknown; ADDRESS ? is an alignment
 * that is not known. Every decision is TARGET|DTYPES|COUNT|OFFSET|ENTRY|REASON, ENTRY -1 for a table. */
static void select_variant(void) {
  aot_kernel *kernel;
  aot__bound_call bound;
  aot__trace trace;
  const aot__entry *entry;
  size_t i, p, t;
  int f;
  aot_status status = aot_bundle_kernel(bundle, fields[1], &kernel, &error);
  if (status != AOT_OK) {
    answer(status);
    return;
  }
  memset(&bound, 0, sizeof bound);
  memset(&trace, 0, sizeof trace);
  bound.values = (aot__value *)aot__take(&bound.arena, kernel->n_params + 1, sizeof *bound.values);
  for (f = 4; f < n_fields; f++) {
    bool unknown = strchr(fields[f], '?') && fields[f][strlen(fields[f]) - 1] == '?';
    aot_arg arg = argument(fields[f]);
    for (p = 0; p < kernel->n_params && strcmp(kernel->params[p].name, arg.name); p++) continue;
    if (p == kernel->n_params) {
      if (!aot__read_option(kernel, &arg, &bound, &error)) abort();
      continue;
    }
    /* Selection can be asked with a number for a pointer, and the other way round. */
    bound.values[p].known = true;
    bound.values[p].pointer = arg.kind == AOT_ARG_POINTER;
    bound.values[p].dtype = arg.dtype;
    bound.values[p].aligned = unknown ? -1 : arg.value.address % 16 == 0;
    if (!bound.values[p].pointer) aot__const_of_arg(&arg, &bound.values[p].number);
  }
  if (!aot__bind_names(kernel, &bound, &error)) abort();
  bound.request.capability = atoi(fields[2]);
  bound.request.max_shared = strtoull(fields[3], NULL, 10);
  if (!aot__select(kernel, &bound.request, &entry, &trace, &error)) {
    answer(error.status);
  } else {
    const aot__entry *untraced;
    if (!aot__select(kernel, &bound.request, &untraced, NULL, &error) || untraced != entry) abort();
    printf("ok");
    for (i = 0; i < trace.count; i++) {
      const aot__decision *decision = trace.decisions + i;
      const aot__table *table = decision->table;
      printf("\t%s|", table->target_name);
      for (t = 0; t < table->n_types; t++) printf("%s%s", t ? "," : "", table->types[t]);
      printf("|%llu|%llu|%ld|", decision->entry ? 1ull : (unsigned long long)table->count,
             (unsigned long long)table->offset, decision->entry ? (long)(decision->entry - table->entries) : -1L);
      escaped(decision->reason);
    }
  }
  aot__drop(&trace.arena);
  aot__drop(&bound.arena);
}

/* expr TEXT NAME=VALUE...: its normal form and its value. */
static void expression(void) {
  aot__arena arena = {NULL};
  aot__binding names[MAX_FIELDS];
  char shown[8192];
  aot__text text = aot__text_of(shown, sizeof shown);
  aot__expr *expr = aot__parse_expr(fields[1], "here", &arena, &error);
  aot__wide value;
  size_t n = 0;
  int f;
  if (!expr) {
    answer(error.status);
    aot__drop(&arena);
    return;
  }
  for (f = 2; f < n_fields; f++, n++) {
    char *equals = strchr(fields[f], '=');
    *equals = 0;
    names[n].name = fields[f];
    names[n].value = equals[1] == '-' ? (aot__wide)strtoll(equals + 1, NULL, 10)
                                      : (aot__wide)strtoull(equals + 1, NULL, 10);
  }
  aot__put_expr(&text, expr, 0);
  printf("ok\t%s\t%d\t", shown, aot__all_bound(expr, names, n));
  text = aot__text_of(shown, sizeof shown);
  if (aot__evaluate(expr, names, n, &value, &text))
    aot__put_wide(&text, value < 0, (aot__uwide)(value < 0 ? -value : value));
  printf("%s", shown);
  aot__drop(&arena);
}

/* pack TYPE =KIND:VALUE: the bytes, or why not. */
static void pack(void) {
  char reason[400];
  aot__text text = aot__text_of(reason, sizeof reason);
  unsigned char bytes[8];
  const aot__scalar *scalar = aot__scalar_of(fields[1]);
  aot__const number;
  aot_arg arg = argument(fields[2]);
  unsigned i;
  aot__const_of_arg(&arg, &number);
  if (aot__scalar_fault("value", scalar, &number, &text)) {
    printf("error\t%s", reason);
    return;
  }
  aot__pack_scalar(scalar, &number, bytes);
  printf("ok\t");
  for (i = 0; i < scalar->size; i++) printf("%02x", bytes[i]);
}

/* inflate SIZE BYTES: the sha256 of what it decompresses to. */
static void inflated(void) {
  size_t size = strtoul(fields[1], NULL, 10), n;
  unsigned char *in = (unsigned char *)malloc(strlen(fields[2]) / 2 + 1), *out = (unsigned char *)malloc(size + 1);
  unsigned char *exact;
  const char *fault;
  bool no_memory;
  char sha256[65];
  n = unhex(fields[2], in);
  /* No byte behind the input may be read. */
  exact = (unsigned char *)malloc(n ? n : 1);
  memcpy(exact, in, n);
  if (aot__inflate(exact, n, out, size, &fault, &no_memory)) {
    aot__sha256_of(out, size, sha256);
    printf("ok\t%s", sha256);
  } else {
    printf("error\t%s", fault ? fault : "another size");
  }
  free(in);
  free(out);
  free(exact);
}

/* json BYTES: the sha256 of its canonical form. */
static void canonical(void) {
  size_t size = strlen(fields[1]) / 2;
  char *data = (char *)malloc(size + 1), sha256[65];
  aot__arena arena = {NULL};
  aot__sha256 sha;
  aot__json *root;
  unhex(fields[1], (unsigned char *)data);
  root = aot__json_parse(data, size, &arena, "here", &error);
  if (root) {
    aot__sha256_start(&sha);
    aot__hash_json(&sha, root);
    aot__sha256_hex(&sha, sha256);
    printf("ok\t%s", sha256);
  } else {
    answer(error.status);
  }
  aot__drop(&arena);
  free(data);
}

/* repr NUMBER */
static void repr(void) {
  char shown[60];
  aot__text text = aot__text_of(shown, sizeof shown);
  aot__put_double(&text, strtod(fields[1], NULL));
  printf("ok\t%s", shown);
}

static aot_status launch_line(aot_error *into) {
  aot_kernel *kernel;
  size_t n = arguments(5);
  aot_status status = aot_bundle_kernel(bundle, fields[1], &kernel, into);
  if (status != AOT_OK) return status;
  return aot_kernel_launch(kernel, atoi(fields[2]), stream_of(fields[3]), grid_of(fields[4]), args, n, into);
}

/* prepare KERNEL DEVICE GRID ARGUMENT... */
static void prepare(void) {
  aot_kernel *kernel;
  size_t n = arguments(4);
  aot_status status = aot_bundle_kernel(bundle, fields[1], &kernel, &error);
  aot_call_free(call);
  call = NULL;
  if (status == AOT_OK)
    status = aot_kernel_prepare(kernel, atoi(fields[2]), grid_of(fields[3]), args, n, &call, &error);
  answer(status);
  if (status == AOT_OK)
    printf("\t%s\t%s\t%zu", aot_call_target(call), aot_call_symbol(call), aot_call_pointer_count(call));
}

/* call STREAM ADDRESS...: `call STREAM` alone takes the addresses of the preparation. */
static void launch_call(void) {
  uint64_t pointers[MAX_FIELDS];
  size_t n = 0;
  int f;
  for (f = 2; f < n_fields; f++) pointers[n++] = strtoull(fields[f], NULL, 0);
  answer(aot_call_launch(call, stream_of(fields[1]), n ? pointers : NULL, n, &error));
}

enum { N_THREADS = 16, N_ROUNDS = 20 };

static struct {
  aot_kernel *kernel;
  size_t n;
  aot_grid *grid;
} race;
static pthread_barrier_t barrier;

static void *racer(void *result) {
  aot_error own;
  uint64_t pointers[MAX_FIELDS];
  aot_call *held;
  size_t i, n = 0;
  int round;
  for (i = 0; i < race.n; i++)
    if (args[i].kind == AOT_ARG_POINTER) pointers[n++] = args[i].value.address;
  pthread_barrier_wait(&barrier);
  *(aot_status *)result = aot_kernel_launch(race.kernel, 0, NULL, race.grid, args, race.n, &own);
  if (aot_kernel_prepare(race.kernel, 0, race.grid, args, race.n, &held, &own) != AOT_OK) abort();
  for (round = 0; round < N_ROUNDS; round++)
    if (aot_call_launch(held, NULL, pointers, n, &own) != AOT_OK) abort();
  aot_call_free(held);
  return NULL;
}

/* threads KERNEL GRID ARGUMENT...: all launch it at once, and then a prepared call of their own. */
static void threads(void) {
  pthread_t ids[N_THREADS];
  aot_status results[N_THREADS];
  int i, fine = 0;
  race.grid = grid_of(fields[2]);
  race.n = arguments(3);
  if (aot_bundle_kernel(bundle, fields[1], &race.kernel, &error) != AOT_OK) abort();
  pthread_barrier_init(&barrier, NULL, N_THREADS);
  for (i = 0; i < N_THREADS; i++)
    if (pthread_create(&ids[i], NULL, racer, &results[i])) abort();
  for (i = 0; i < N_THREADS; i++) {
    pthread_join(ids[i], NULL);
    fine += results[i] == AOT_OK;
  }
  pthread_barrier_destroy(&barrier);
  printf("ok\t%d", fine);
}

/* fork KERNEL DEVICE STREAM GRID ARGUMENT...: launch in a child. */
static void launch_in_child(void) {
  int status;
  pid_t child;
  fflush(stdout);
  child = fork();
  if (!child) {
    answer(launch_line(&error));
    putchar('\n');
    fflush(stdout);
    _exit(0);
  }
  waitpid(child, &status, 0);
  printf("ok\t%d", status);
}

static void list(void) {
  size_t i, p;
  aot_kernel *kernel;
  aot_param_kind kind;
  printf("ok");
  for (i = 0; i < aot_bundle_target_count(bundle); i++) printf("\t%s", aot_bundle_target_name(bundle, i));
  for (i = 0; i < aot_bundle_kernel_count(bundle); i++) {
    if (aot_bundle_kernel(bundle, aot_bundle_kernel_name(bundle, i), &kernel, NULL) != AOT_OK) abort();
    printf("\t%s(", aot_kernel_name(kernel));
    for (p = 0; p < aot_kernel_param_count(kernel); p++) {
      const char *name = aot_kernel_param(kernel, p, &kind);
      printf("%s%s:%d", p ? " " : "", name, (int)kind);
    }
    printf(")");
  }
  if (aot_bundle_kernel_name(bundle, i) || aot_bundle_target_name(bundle, 99)) abort();
}

/* Wrong uses of the functions themselves. */
static void misuse(void) {
  aot_arg none[1] = {aot_none()};
  aot_bundle *made;
  aot_kernel *kernel;
  printf("ok");
#define REFUSED(use)                \
  do {                              \
    if ((use) == AOT_OK) abort();   \
    putchar('\t');                  \
    escaped(error.text);            \
  } while (0)
  REFUSED(aot_bundle_open("", &made, &error));
  REFUSED(aot_bundle_open(NULL, &made, &error));
  REFUSED(aot_bundle_open("x", NULL, &error));
  REFUSED(aot_bundle_kernel(bundle, NULL, &kernel, &error));
  REFUSED(aot_bundle_kernel(bundle, "nothing", &kernel, &error));
  REFUSED(aot_kernel_launch(NULL, 0, NULL, NULL, none, 0, &error));
  REFUSED(aot_kernel_prepare(NULL, 0, NULL, none, 0, &call, &error));
  REFUSED(aot_call_launch(NULL, NULL, NULL, 0, &error));
  if (aot_bundle_open("", &made, NULL) != AOT_ERROR_NO_BUNDLE) abort();
  aot_bundle_close(NULL);
  aot_call_free(NULL);
}

static void run(void) {
  const char *command = fields[0];
  if (!strcmp(command, "open")) open_bundle();
  else if (!strcmp(command, "readall")) read_all();
  else if (!strcmp(command, "select")) select_variant();
  else if (!strcmp(command, "expr")) expression();
  else if (!strcmp(command, "pack")) pack();
  else if (!strcmp(command, "inflate")) inflated();
  else if (!strcmp(command, "json")) canonical();
  else if (!strcmp(command, "repr")) repr();
  else if (!strcmp(command, "launch")) answer(launch_line(&error));
  else if (!strcmp(command, "prepare")) prepare();
  else if (!strcmp(command, "call")) launch_call();
  else if (!strcmp(command, "threads")) threads();
  else if (!strcmp(command, "fork")) launch_in_child();
  else if (!strcmp(command, "list")) list();
  else if (!strcmp(command, "misuse")) misuse();
  else if (!strcmp(command, "close")) {
    aot_bundle_close(bundle);
    bundle = NULL;
    printf("ok");
  } else if (!strcmp(command, "allocations")) {
    allocations_left = atol(fields[1]);
    printf("ok");
  } else abort();
}

int main(void) {
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  setlocale(LC_ALL, "");
  while ((length = getline(&line, &room, stdin)) > 0) {
    char *at = line;
    if (line[length - 1] == '\n') line[length - 1] = 0;
    for (n_fields = 0; at && n_fields < MAX_FIELDS; n_fields++) {
      fields[n_fields] = at;
      at = strchr(at, '\t');
      if (at) *at++ = 0;
    }
    run();
    putchar('\n');
    fflush(stdout);
  }
  free(line);
  aot_call_free(call);
  aot_bundle_close(bundle);
  return 0;
}
