/* Typed values out of a JSON tree; a wrong one is an error that names its path. */

typedef struct aot__source {
  const char *where;
  aot__arena *arena;
  aot_error *error;
} aot__source;

/* A constexpr's value, or a default. */
typedef struct aot__const {
  aot_arg_kind kind; /* INT, FLOAT, BOOL, STRING, DTYPE or NONE */
  bool negative, large;
  uint64_t magnitude;
  double number;
  const char *text;
} aot__const;

/* Write where a node stands, as $.kernels[2].name. */
static void aot__put_path(aot__text *text, const aot__json *node) {
  const aot__json *child;
  size_t index = 0;
  if (!node->parent) {
    aot__put(text, "$");
    return;
  }
  aot__put_path(text, node->parent);
  if (node->key) {
    aot__put(text, ".%.100s", node->key);
    return;
  }
  for (child = node->parent->child; child != node; child = child->next) index++;
  aot__put(text, "[%zu]", index);
}

static bool aot__wanted(const aot__source *source, const aot__json *node, const char *found, const char *wanted) {
  char path[400];
  aot__text text = aot__text_of(path, sizeof path);
  aot__put_path(&text, node);
  aot__fail(source->error, AOT_ERROR_BUNDLE,
            "%s: found %.200s at %s, wanted %s; the file is damaged, build the bundle again", source->where, found,
            path, wanted);
  return false;
}

static bool aot__typed(const aot__source *source, const aot__json *node, aot__type type) {
  if (node->type == type) return true;
  return aot__wanted(source, node, aot__type_names[node->type], aot__type_names[type]);
}

/* Find the members of an object: the first `n_required` of `names` must be there, the others may be
 * (NULL where not), and there must be no other. */
static bool aot__fields(const aot__source *source, const aot__json *node, const char *const *names,
                        size_t n_required, size_t n_names, aot__json **fields) {
  aot__json *child;
  size_t i;
  char found[160];
  if (!aot__typed(source, node, AOT__OBJECT)) return false;
  for (i = 0; i < n_names; i++) fields[i] = NULL;
  for (child = node->child; child; child = child->next) {
    for (i = 0; i < n_names && strcmp(names[i], child->key); i++) continue;
    if (i == n_names) {
      snprintf(found, sizeof found, "an unknown field `%.100s`", child->key);
      return aot__wanted(source, node, found, "the fields that this version knows");
    }
    fields[i] = child;
  }
  for (i = 0; i < n_required; i++)
    if (!fields[i]) {
      snprintf(found, sizeof found, "a field `%.100s`", names[i]);
      return aot__wanted(source, node, "an object without it", found);
    }
  return true;
}

/* The elements of an array of exactly `count`. */
static bool aot__elements(const aot__source *source, const aot__json *node, size_t count, aot__json **elements) {
  aot__json *child;
  char found[64], wanted[64];
  if (!aot__typed(source, node, AOT__ARRAY)) return false;
  if (node->count != count) {
    snprintf(found, sizeof found, "an array of %zu", node->count);
    snprintf(wanted, sizeof wanted, "an array of %zu", count);
    return aot__wanted(source, node, found, wanted);
  }
  for (child = node->child; child; child = child->next) *elements++ = child;
  return true;
}

static bool aot__integer(const aot__source *source, const aot__json *node, uint64_t low, uint64_t high,
                         uint64_t *value) {
  char found[64], wanted[64];
  *value = 0;
  if (!aot__typed(source, node, AOT__INT)) return false;
  if (node->negative || node->large || node->magnitude < low || node->magnitude > high) {
    if (node->large) snprintf(found, sizeof found, "%.40s", node->text);
    else snprintf(found, sizeof found, "%s%llu", node->negative ? "-" : "", (unsigned long long)node->magnitude);
    snprintf(wanted, sizeof wanted, "%llu to %llu", (unsigned long long)low, (unsigned long long)high);
    return aot__wanted(source, node, found, wanted);
  }
  *value = node->magnitude;
  return true;
}

/* A count of bytes or things: no sound bundle comes near 2**53. */
static bool aot__size(const aot__source *source, const aot__json *node, uint64_t low, uint64_t *value) {
  return aot__integer(source, node, low, (uint64_t)1 << 53, value);
}

static bool aot__string(const aot__source *source, const aot__json *node, const char **value) {
  if (!aot__typed(source, node, AOT__STRING)) return false;
  *value = node->text;
  return true;
}

/* A string of 1 to 1000 characters. */
static bool aot__name(const aot__source *source, const aot__json *node, const char **value) {
  size_t characters = 0, i;
  if (!aot__string(source, node, value)) return false;
  for (i = 0; (*value)[i]; i++) characters += ((unsigned char)(*value)[i] & 0xc0) != 0x80;
  if (characters >= 1 && characters <= 1000) return true;
  return aot__wanted(source, node, characters ? "a longer string" : "an empty string", "1 to 1000 characters");
}

static bool aot__hex64(const aot__source *source, const aot__json *node, const char **value) {
  size_t i;
  if (!aot__string(source, node, value)) return false;
  for (i = 0; i < 64; i++) {
    char c = (*value)[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) break;
  }
  return (i == 64 && !(*value)[64]) || aot__wanted(source, node, *value, "a sha256 of 64 hexadecimal digits");
}

/* One of several words; *value becomes its index. */
static bool aot__choice(const aot__source *source, const aot__json *node, const char *const *words, size_t n_words,
                        unsigned *value) {
  char wanted[100];
  aot__text text = aot__text_of(wanted, sizeof wanted);
  size_t i;
  *value = 0;
  if (!aot__typed(source, node, AOT__STRING)) return false;
  for (i = 0; i < n_words; i++)
    if (!strcmp(node->text, words[i])) {
      *value = (unsigned)i;
      return true;
    }
  for (i = 0; i < n_words; i++) aot__put(&text, "%s%s", i ? " or " : "", words[i]);
  return aot__wanted(source, node, node->text, wanted);
}

static bool aot__boolean(const aot__source *source, const aot__json *node, bool *value) {
  *value = node->magnitude != 0;
  return aot__typed(source, node, AOT__BOOL);
}

/* `count` zeroed values from the source's arena. */
static void *aot__array(const aot__source *source, size_t count, size_t size) {
  void *array = aot__take(source->arena, count ? count : 1, size);
  if (!array) aot__no_memory(source->error);
  return array;
}

/* An array of strings. */
static bool aot__strings(const aot__source *source, const aot__json *node, const char ***values, size_t *count) {
  const aot__json *child;
  size_t i = 0;
  if (!aot__typed(source, node, AOT__ARRAY)) return false;
  *count = node->count;
  *values = (const char **)aot__array(source, node->count, sizeof **values);
  if (!*values) return false;
  for (child = node->child; child; child = child->next)
    if (!aot__string(source, child, &(*values)[i++])) return false;
  return true;
}

static bool aot__const_of(const aot__source *source, const aot__json *node, aot__const *value) {
  static const char *const names[] = {"dtype"};
  aot__json *field;
  memset(value, 0, sizeof *value);
  value->negative = node->negative;
  value->large = node->large;
  value->magnitude = node->magnitude;
  value->text = node->text;
  switch (node->type) {
    case AOT__NULL: value->kind = AOT_ARG_NONE; return true;
    case AOT__BOOL: value->kind = AOT_ARG_BOOL; return true;
    case AOT__STRING: value->kind = AOT_ARG_STRING; return true;
    case AOT__FLOAT:
      value->kind = AOT_ARG_FLOAT;
      value->text = NULL; /* the number's spelling goes with the tree */
      value->number = aot__double_of(node->text);
      return true;
    case AOT__INT:
      value->kind = AOT_ARG_INT;
      if (!node->large) return true;
      /* Its spelling outlives the tree. */
      value->text = aot__copy(source->arena, node->text, strlen(node->text));
      return value->text || (aot__no_memory(source->error), false);
    case AOT__OBJECT:
      value->kind = AOT_ARG_DTYPE;
      return aot__fields(source, node, names, 1, 1, &field) && aot__string(source, field, &value->text);
    case AOT__ARRAY: break;
  }
  return aot__wanted(source, node, "an array", "a bool, number, string, dtype or null");
}

/* Equal in value and in type: 1, 1.0 and True are three different constexprs. */
static bool aot__same_const(const aot__const *a, const aot__const *b) {
  if (a->kind != b->kind) return false;
  switch (a->kind) {
    case AOT_ARG_FLOAT: return a->number == b->number;
    case AOT_ARG_STRING:
    case AOT_ARG_DTYPE: return !strcmp(a->text, b->text);
    case AOT_ARG_NONE: return true;
    default:
      if (a->large || b->large) return a->large && b->large && !strcmp(a->text, b->text);
      return a->negative == b->negative && a->magnitude == b->magnitude;
  }
}

/* A dtype by its name, anything else as Python writes it. */
static void aot__put_const(aot__text *text, const aot__const *value) {
  switch (value->kind) {
    case AOT_ARG_BOOL: aot__put(text, value->magnitude ? "True" : "False"); break;
    case AOT_ARG_FLOAT: aot__put_double(text, value->number); break;
    case AOT_ARG_STRING: aot__put_quoted(text, value->text); break;
    case AOT_ARG_DTYPE: aot__put(text, "%s", value->text); break;
    case AOT_ARG_NONE: aot__put(text, "None"); break;
    default:
      if (value->large) aot__put(text, "%s", value->text);
      else aot__put_wide(text, value->negative, value->magnitude);
  }
}
