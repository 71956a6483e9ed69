/* The manifest as typed values. aot/manifest.py is the same in Python. */

typedef struct aot__pack {
  const char *target_name, *file;
  aot__target target;
  uint64_t size;
  int fd;
} aot__pack;

typedef struct aot__param {
  const char *name;
  unsigned kind; /* aot_param_kind */
  bool has_default;
  aot__const value;
} aot__param;

struct aot__entry;

/* The variants of one kernel, target and tuple of pointer dtypes. `entries` are read when first asked for. */
typedef struct aot__table {
  const aot__pack *pack;
  aot_kernel *kernel;
  const char *target_name, *sha256;
  const char **types;
  size_t n_types;
  uint64_t count, offset, size, raw_size;
  aot__target target;
  struct aot__entry *entries;
  char *text;
  aot__arena arena;
} aot__table;

struct aot_kernel {
  aot_bundle *bundle;
  const char *name;
  aot__param *params;
  size_t n_params;
  aot__expr **grid; /* three at most; n_grid 0 where the spec gives none */
  size_t n_grid;
  aot__table *tables;
  aot__table **order; /* the tables, the best target first */
  size_t n_tables;
  size_t n_failed; /* variants that did not compile */
  const char *first_failure;
};

/* What one manifest.json says, with the memory that holds it. */
typedef struct aot__manifest {
  aot__arena arena;
  char *text;
  const char *digest, *ptxas;
  aot__pack *packs;
  size_t n_packs;
  aot_kernel *kernels;
  size_t n_kernels;
  uint64_t variants;
} aot__manifest;

enum { AOT__MAX_KERNEL_PARAMS = 1024 };

static const char *const aot__param_kinds[] = {"pointer", "scalar", "constexpr"};

/* A field that has a default and was left out: the canonical form has it. */
static bool aot__put_default(const aot__source *source, aot__json *object, const char *key, aot__type type) {
  aot__json **at = &object->child, *node = (aot__json *)aot__take(source->arena, 1, sizeof *node);
  if (!node) return aot__no_memory(source->error), false;
  while (*at && strcmp((*at)->key, key) < 0) at = &(*at)->next;
  node->parent = object;
  node->key = key;
  node->type = type;
  node->next = *at;
  *at = node;
  object->count++;
  return true;
}

static bool aot__read_header(const aot__source *source, const aot__json *root) {
  static const char *const names[] = {"format", "format_version", "launch_abi"};
  const aot__json *child, *found[3] = {NULL, NULL, NULL};
  int wanted[3] = {0, AOT_FORMAT_VERSION, AOT_LAUNCH_ABI}, i;
  if (!aot__typed(source, root, AOT__OBJECT)) return false;
  for (child = root->child; child; child = child->next)
    for (i = 0; i < 3; i++)
      if (!strcmp(child->key, names[i])) found[i] = child;
  for (i = 0; i < 3; i++) {
    if (!found[i]) return aot__wanted(source, root, "no format, format_version or launch_abi", "all three");
    if (!aot__typed(source, found[i], i ? AOT__INT : AOT__STRING)) return false;
  }
  if (strcmp(found[0]->text, "aot-bundle")) {
    char shown[120];
    aot__text text = aot__text_of(shown, sizeof shown);
    aot__put_quoted(&text, found[0]->text);
    aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: found format %s, wanted 'aot-bundle'; this is no bundle",
              source->where, shown);
    return false;
  }
  for (i = 1; i < 3; i++) {
    const aot__json *node = found[i];
    char shown[60];
    aot__text text = aot__text_of(shown, sizeof shown);
    if (!node->large && !node->negative && node->magnitude == (uint64_t)wanted[i]) continue;
    if (node->large) aot__put(&text, "%.40s", node->text);
    else aot__put_wide(&text, node->negative, node->magnitude);
    aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: found %s %s, this version reads %d; %s", source->where, names[i],
              shown, wanted[i], node->negative || node->magnitude < (uint64_t)wanted[i] ? "build the bundle again"
                                                                                       : "upgrade aot-kernels");
    return false;
  }
  return true;
}

static bool aot__read_packs(const aot__source *source, const aot__json *list, aot__manifest *manifest) {
  static const char *const names[] = {"target", "file", "size", "cubins"};
  const aot__json *node;
  if (!aot__typed(source, list, AOT__ARRAY)) return false;
  manifest->packs = (aot__pack *)aot__array(source, list->count, sizeof *manifest->packs);
  if (!manifest->packs) return false;
  for (node = list->child; node; node = node->next) {
    aot__pack *pack = manifest->packs + manifest->n_packs++;
    aot__json *f[4];
    uint64_t cubins;
    size_t length;
    pack->fd = -1;
    if (!aot__fields(source, node, names, 4, 4, f) || !aot__string(source, f[0], &pack->target_name) ||
        !aot__string(source, f[1], &pack->file) || !aot__size(source, f[2], 0, &pack->size) ||
        !aot__size(source, f[3], 0, &cubins))
      return false;
    /* A safe name, and no way out of the directory. */
    length = strspn(pack->file, "abcdefghijklmnopqrstuvwxyz0123456789_.-");
    if (pack->file[length] || length < 1 || length > 100 || strchr("_.-", pack->file[0]))
      return aot__wanted(source, f[1], pack->file, "a file name that matches [a-z0-9][a-z0-9_.-]{0,99}");
  }
  return true;
}

static bool aot__read_params(const aot__source *source, aot__json *list, aot_kernel *kernel) {
  static const char *const names[] = {"name", "kind", "has_default", "default"};
  aot__json *node;
  if (!aot__typed(source, list, AOT__ARRAY)) return false;
  if (list->count > AOT__MAX_KERNEL_PARAMS)
    return aot__wanted(source, list, "more", "at most 1024 parameters");
  kernel->params = (aot__param *)aot__array(source, list->count, sizeof *kernel->params);
  if (!kernel->params) return false;
  for (node = list->child; node; node = node->next) {
    aot__param *param = kernel->params + kernel->n_params;
    aot__json *f[4];
    size_t i;
    param->value.kind = AOT_ARG_NONE;
    if (!aot__fields(source, node, names, 2, 4, f) || !aot__name(source, f[0], &param->name) ||
        !aot__choice(source, f[1], aot__param_kinds, 3, &param->kind))
      return false;
    if (f[2] ? !aot__boolean(source, f[2], &param->has_default)
             : !aot__put_default(source, node, "has_default", AOT__BOOL))
      return false;
    if (f[3] ? !aot__const_of(source, f[3], &param->value) : !aot__put_default(source, node, "default", AOT__NULL))
      return false;
    for (i = 0; i < kernel->n_params; i++)
      if (!strcmp(kernel->params[i].name, param->name))
        return aot__wanted(source, f[0], param->name, "a name that no other parameter has");
    kernel->n_params++;
  }
  return true;
}

static bool aot__read_table_ref(const aot__source *source, const aot__json *node, aot__table *table) {
  static const char *const names[] = {"target", "types", "count", "offset", "size", "raw_size", "sha256"};
  aot__json *f[7];
  return aot__fields(source, node, names, 7, 7, f) && aot__string(source, f[0], &table->target_name) &&
         aot__strings(source, f[1], &table->types, &table->n_types) &&
         aot__integer(source, f[2], 1, (uint64_t)1 << 32, &table->count) &&
         aot__size(source, f[3], 0, &table->offset) && aot__size(source, f[4], 0, &table->size) &&
         aot__size(source, f[5], 0, &table->raw_size) && aot__hex64(source, f[6], &table->sha256);
}

static bool aot__read_grid(const aot__source *source, const aot__json *node, aot_kernel *kernel) {
  const char **texts;
  size_t count, i;
  if (node->type == AOT__NULL) return true;
  if (!aot__strings(source, node, &texts, &count)) return false;
  if (count < 1 || count > 3) return aot__wanted(source, node, "a grid of another length", "1 to 3 expressions");
  kernel->grid = (aot__expr **)aot__array(source, count, sizeof *kernel->grid);
  if (!kernel->grid) return false;
  for (i = 0; i < count; i++) {
    kernel->grid[i] = aot__parse_expr(texts[i], source->where, source->arena, source->error);
    if (!kernel->grid[i]) return false;
  }
  kernel->n_grid = count;
  return true;
}

static bool aot__read_kernel(const aot__source *source, const aot__json *node, aot_kernel *kernel) {
  static const char *const names[] = {"name", "params", "grid", "source", "source_sha256", "tables"};
  aot__json *f[6], *child;
  const char *text;
  if (!aot__fields(source, node, names, 6, 6, f) || !aot__name(source, f[0], &kernel->name) ||
      !aot__read_params(source, f[1], kernel) || !aot__read_grid(source, f[2], kernel) ||
      !aot__string(source, f[3], &text) || !aot__hex64(source, f[4], &text) ||
      !aot__typed(source, f[5], AOT__ARRAY))
    return false;
  kernel->tables = (aot__table *)aot__array(source, f[5]->count, sizeof *kernel->tables);
  kernel->order = (aot__table **)aot__array(source, f[5]->count, sizeof *kernel->order);
  if (!kernel->tables || !kernel->order) return false;
  for (child = f[5]->child; child; child = child->next) {
    aot__table *table = kernel->tables + kernel->n_tables++;
    table->kernel = kernel;
    if (!aot__read_table_ref(source, child, table)) return false;
  }
  return true;
}

static bool aot__read_missing(const aot__source *source, const aot__json *list, aot__manifest *manifest) {
  static const char *const names[] = {"kernel", "target", "axes", "error"};
  const aot__json *node, *axis;
  if (!aot__typed(source, list, AOT__ARRAY)) return false;
  for (node = list->child; node; node = node->next) {
    aot__json *f[4];
    aot__const value;
    const char *kernel, *target, *failure;
    size_t i;
    if (!aot__fields(source, node, names, 4, 4, f) || !aot__name(source, f[0], &kernel) ||
        !aot__string(source, f[1], &target) || !aot__typed(source, f[2], AOT__OBJECT) ||
        !aot__string(source, f[3], &failure))
      return false;
    for (axis = f[2]->child; axis; axis = axis->next)
      if (!aot__const_of(source, axis, &value)) return false;
    for (i = 0; i < manifest->n_kernels; i++)
      if (!strcmp(manifest->kernels[i].name, kernel)) {
        if (!manifest->kernels[i].n_failed++) manifest->kernels[i].first_failure = failure;
        break;
      }
  }
  return true;
}

static bool aot__read_provenance(const aot__source *source, const aot__json *node, aot__manifest *manifest) {
  static const char *const names[] = {"aot", "triton", "ptxas", "environment", "specs"};
  aot__json *f[5], *child;
  const char *text;
  if (!aot__fields(source, node, names, 5, 5, f) || !aot__string(source, f[0], &text) ||
      !aot__string(source, f[1], &text) || !aot__string(source, f[2], &manifest->ptxas) ||
      !aot__typed(source, f[3], AOT__OBJECT) || !aot__typed(source, f[4], AOT__OBJECT))
    return false;
  for (child = f[3]->child; child; child = child->next)
    if (!aot__string(source, child, &text)) return false;
  for (child = f[4]->child; child; child = child->next)
    if (!aot__hex64(source, child, &text)) return false;
  return true;
}
