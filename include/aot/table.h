/* A table's entries: what was compiled, and what came out. */

typedef struct aot__arg {
  unsigned kind;    /* aot_param_kind, as the kernel's parameter of the same index */
  const char *type; /* of a pointer: torch's name of its dtype */
  const aot__scalar *scalar;
  unsigned align; /* 1 or 16 */
  unsigned claim; /* of a scalar: 0 is any, 1, or 16 */
  aot__const value;
} aot__arg;

typedef struct aot__bound {
  const char *text;
  aot__expr *of;
  aot__wide max;
} aot__bound;

/* The compile options, in the order of aot__option_names; maxnreg may be None. */
enum { AOT__NUM_WARPS, AOT__NUM_STAGES, AOT__NUM_CTAS, AOT__FP_FUSION, AOT__MAXNREG, AOT__N_OPTIONS };

typedef struct aot__axis {
  const char *name; /* with its $ */
  aot__const value;
} aot__axis;

typedef struct aot__entry {
  const aot__table *table;
  aot__arg *args; /* as many as the kernel has parameters */
  aot__bound *bounds;
  aot__axis *axes;
  size_t n_bounds, n_axes;
  aot__const options[AOT__N_OPTIONS];
  const char *symbol, *sha256;
  uint64_t offset, size, raw_size;
  bool compressed;
  uint64_t *param_offsets, *param_sizes;
  size_t n_params;
  uint64_t hidden, shared, scratch, scratch_align;
} aot__entry;

static const char *const aot__option_names[] = {"num_warps", "num_stages", "num_ctas", "fp_fusion", "maxnreg"};

static bool aot__other_args(const aot__source *source, const aot_kernel *kernel) {
  aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: holds a variant whose arguments are not those of kernel '%s'",
            source->where, kernel->name);
  return false;
}

static bool aot__read_arg(const aot__source *source, const aot__json *node, const aot_kernel *kernel, size_t index,
                          aot__arg *arg) {
  static const char *const claims[] = {"any", "1", "16"};
  static const unsigned claimed[] = {0, 1, 16};
  const aot__param *param = kernel->params + index;
  aot__json *e[5];
  const char *name, *type;
  uint64_t align;
  unsigned claim;
  if (!aot__typed(source, node, AOT__ARRAY)) return false;
  if (!node->child) return aot__wanted(source, node, "an empty array", "an argument");
  if (!aot__choice(source, node->child, aot__param_kinds, 3, &arg->kind)) return false;
  if (!aot__elements(source, node, arg->kind == AOT_PARAM_POINTER ? 5 : arg->kind == AOT_PARAM_SCALAR ? 4 : 3, e) ||
      !aot__name(source, e[1], &name))
    return false;
  if (strcmp(name, param->name) || arg->kind != param->kind) return aot__other_args(source, kernel);
  if (arg->kind == AOT_PARAM_CONSTEXPR) return aot__const_of(source, e[2], &arg->value);
  if (!aot__string(source, e[2], &type)) return false;
  if (arg->kind == AOT_PARAM_SCALAR) {
    size_t i;
    char known[200];
    aot__text text = aot__text_of(known, sizeof known);
    if (!aot__choice(source, e[3], claims, 3, &claim)) return false;
    arg->claim = claimed[claim];
    arg->scalar = aot__scalar_of(type);
    if (arg->scalar) return true;
    for (i = 0; i < AOT__COUNT(aot__scalars); i++) aot__put(&text, "%s%s", i ? ", " : "", aot__scalars[i].triton);
    aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: found type '%.60s' of %s, wanted one of %s", source->where, type,
              name, known);
    return false;
  }
  if (!aot__string(source, e[3], &arg->type) || !aot__integer(source, e[4], 1, 16, &align)) return false;
  if (align != 1 && align != 16) return aot__wanted(source, e[4], "another alignment", "1 or 16");
  arg->align = (unsigned)align;
  return true;
}

static bool aot__read_bounds(const aot__source *source, const aot__json *list, aot__entry *entry) {
  const aot__json *node;
  if (!aot__typed(source, list, AOT__ARRAY)) return false;
  entry->bounds = (aot__bound *)aot__array(source, list->count, sizeof *entry->bounds);
  if (!entry->bounds) return false;
  for (node = list->child; node; node = node->next) {
    aot__bound *bound = entry->bounds + entry->n_bounds++;
    aot__json *e[2];
    if (!aot__elements(source, node, 2, e) || !aot__string(source, e[0], &bound->text) ||
        !aot__typed(source, e[1], AOT__INT))
      return false;
    if (e[1]->large) return aot__wanted(source, e[1], "a larger one", "an integer of 64 bits");
    bound->max = e[1]->negative ? -(aot__wide)e[1]->magnitude : (aot__wide)e[1]->magnitude;
    bound->of = aot__parse_expr(bound->text, source->where, source->arena, source->error);
    if (!bound->of) return false;
  }
  return true;
}

static bool aot__read_axes(const aot__source *source, const aot__json *object, aot__entry *entry) {
  const aot__json *node;
  if (!aot__typed(source, object, AOT__OBJECT)) return false;
  entry->axes = (aot__axis *)aot__array(source, object->count, sizeof *entry->axes);
  if (!entry->axes) return false;
  for (node = object->child; node; node = node->next) {
    aot__axis *axis = entry->axes + entry->n_axes++;
    size_t length = strlen(node->key);
    char *name = (char *)aot__take(source->arena, length + 2, 1);
    if (!name) return aot__no_memory(source->error), false;
    name[0] = '$';
    memcpy(name + 1, node->key, length);
    axis->name = name;
    if (!aot__const_of(source, node, &axis->value)) return false;
  }
  return true;
}

static bool aot__read_options(const aot__source *source, const aot__json *node, aot__entry *entry) {
  static const uint64_t least[] = {1, 0, 1};
  aot__json *f[AOT__N_OPTIONS];
  uint64_t value;
  bool fusion;
  int i;
  if (!aot__fields(source, node, aot__option_names, 4, AOT__N_OPTIONS, f)) return false;
  for (i = 0; i <= AOT__NUM_CTAS; i++)
    if (!aot__size(source, f[i], least[i], &value) || !aot__const_of(source, f[i], &entry->options[i])) return false;
  if (!aot__boolean(source, f[AOT__FP_FUSION], &fusion) ||
      !aot__const_of(source, f[AOT__FP_FUSION], &entry->options[AOT__FP_FUSION]))
    return false;
  entry->options[AOT__MAXNREG].kind = AOT_ARG_NONE;
  if (!f[AOT__MAXNREG] || f[AOT__MAXNREG]->type == AOT__NULL) return true;
  return aot__typed(source, f[AOT__MAXNREG], AOT__INT) &&
         aot__const_of(source, f[AOT__MAXNREG], &entry->options[AOT__MAXNREG]);
}

static bool aot__read_variant(const aot__source *source, const aot__json *node, aot__entry *entry) {
  static const char *const names[] = {"kernel", "target", "axes", "args", "bounds", "options"};
  const aot__table *table = entry->table;
  const aot_kernel *kernel = table->kernel;
  aot__json *f[6], *child;
  const char *name, *target;
  size_t i, n_types = 0;
  bool same;
  if (!aot__fields(source, node, names, 6, 6, f) || !aot__name(source, f[0], &name) ||
      !aot__string(source, f[1], &target) || !aot__read_axes(source, f[2], entry) ||
      !aot__typed(source, f[3], AOT__ARRAY) || !aot__read_bounds(source, f[4], entry) ||
      !aot__read_options(source, f[5], entry))
    return false;
  same = !strcmp(name, kernel->name) && !strcmp(target, table->target_name);
  if (same && f[3]->count != kernel->n_params) return aot__other_args(source, kernel);
  entry->args = (aot__arg *)aot__array(source, kernel->n_params, sizeof *entry->args);
  if (!entry->args) return false;
  for (i = 0, child = f[3]->child; same && child; child = child->next, i++) {
    if (!aot__read_arg(source, child, kernel, i, entry->args + i)) return false;
    if (entry->args[i].kind != AOT_PARAM_POINTER) continue;
    same = n_types < table->n_types && !strcmp(table->types[n_types], entry->args[i].type);
    n_types++;
  }
  if (same && n_types == table->n_types) return true;
  aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: holds a variant of another kernel, target or dtype", source->where);
  return false;
}

static bool aot__read_cubin_ref(const aot__source *source, const aot__json *node, aot__entry *entry) {
  static const char *const names[] = {"sha256", "offset", "size", "raw_size", "codec"};
  static const char *const codecs[] = {"none", "zlib"};
  aot__json *f[5];
  unsigned codec;
  if (!aot__fields(source, node, names, 5, 5, f) || !aot__hex64(source, f[0], &entry->sha256) ||
      !aot__size(source, f[1], 0, &entry->offset) || !aot__size(source, f[2], 0, &entry->size) ||
      !aot__size(source, f[3], 0, &entry->raw_size) || !aot__choice(source, f[4], codecs, 2, &codec))
    return false;
  entry->compressed = codec == 1;
  return true;
}

static bool aot__read_binary(const aot__source *source, const aot__json *node, aot__entry *entry) {
  static const char *const names[] = {"symbol", "cubin",     "params", "hidden",
                                      "shared", "registers", "local",  "scratch"};
  aot__json *f[8], *child, *e[2];
  uint64_t ignored;
  size_t i = 0;
  if (!aot__fields(source, node, names, 8, 8, f) || !aot__name(source, f[0], &entry->symbol) ||
      !aot__read_cubin_ref(source, f[1], entry) || !aot__typed(source, f[2], AOT__ARRAY) ||
      !aot__integer(source, f[3], 0, 2, &entry->hidden) || !aot__size(source, f[4], 0, &entry->shared) ||
      !aot__size(source, f[5], 0, &ignored) || !aot__size(source, f[6], 0, &ignored) ||
      !aot__elements(source, f[7], 2, e) || !aot__size(source, e[0], 0, &entry->scratch) ||
      !aot__size(source, e[1], 1, &entry->scratch_align))
    return false;
  entry->n_params = f[2]->count;
  entry->param_offsets = (uint64_t *)aot__array(source, entry->n_params, sizeof *entry->param_offsets);
  entry->param_sizes = (uint64_t *)aot__array(source, entry->n_params, sizeof *entry->param_sizes);
  if (!entry->param_offsets || !entry->param_sizes) return false;
  for (child = f[2]->child; child; child = child->next, i++)
    if (!aot__elements(source, child, 2, e) || !aot__size(source, e[0], 0, &entry->param_offsets[i]) ||
        !aot__size(source, e[1], 0, &entry->param_sizes[i]))
      return false;
  return true;
}

/* Read all entries from the tree of a table. */
static bool aot__read_entries(const aot__source *source, const aot__json *root, const aot__table *table,
                              aot__entry **entries) {
  static const char *const names[] = {"variant", "binary"};
  const aot__json *node;
  aot__json *f[2];
  size_t i = 0;
  if (!aot__typed(source, root, AOT__ARRAY)) return false;
  if (root->count != table->count) {
    aot__fail(source->error, AOT_ERROR_BUNDLE, "%s: found %zu variants, wanted %llu", source->where, root->count,
              (unsigned long long)table->count);
    return false;
  }
  *entries = (aot__entry *)aot__array(source, root->count, sizeof **entries);
  if (!*entries) return false;
  for (node = root->child; node; node = node->next, i++) {
    (*entries)[i].table = table;
    if (!aot__fields(source, node, names, 2, 2, f) || !aot__read_variant(source, f[0], *entries + i) ||
        !aot__read_binary(source, f[1], *entries + i))
      return false;
  }
  return true;
}
