/* Scalar types and targets: the tables of aot/dtypes.py and aot/target.py. */

typedef struct aot__scalar {
  const char *triton, *name; /* Triton's name of the type, and torch's */
  unsigned size;
  bool integer, is_signed;
  unsigned bits; /* of an integer */
} aot__scalar;

static const aot__scalar aot__scalars[] = {
    {"fp16", "float16", 2, false, false, 0}, {"bf16", "bfloat16", 2, false, false, 0},
    {"fp32", "float32", 4, false, false, 0}, {"fp64", "float64", 8, false, false, 0},
    {"i8", "int8", 1, true, true, 8},        {"i16", "int16", 2, true, true, 16},
    {"i32", "int32", 4, true, true, 32},     {"i64", "int64", 8, true, true, 64},
    {"u8", "uint8", 1, true, false, 8},      {"u16", "uint16", 2, true, false, 16},
    {"u32", "uint32", 4, true, false, 32},   {"u64", "uint64", 8, true, false, 64},
    {"i1", "bool", 1, true, false, 1}};

static const aot__scalar *aot__scalar_of(const char *triton) {
  size_t i;
  for (i = 0; i < AOT__COUNT(aot__scalars); i++)
    if (!strcmp(aot__scalars[i].triton, triton)) return aot__scalars + i;
  return NULL;
}

typedef struct aot__target {
  int capability; /* major * 10 + minor */
  bool specific;  /* the suffix a: runs on exactly this capability */
} aot__target;

static const int aot__capabilities[] = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

static const int64_t aot__max_grid[3] = {2147483647, 65535, 65535};

/* Read sm_90, sm_90a, 90, 90a, 9.0 or 9.0a. */
static bool aot__target_of(const char *text, aot__target *target) {
  int major = 0, n = 0;
  size_t i;
  if (!strncmp(text, "sm_", 3)) text += 3;
  if (*text == '0') return false;
  for (; aot__digit(*text) && n < 3; text++, n++) major = major * 10 + (*text - '0');
  if (*text == '.') {
    if (n < 1 || n > 2 || !aot__digit(text[1])) return false;
    major = major * 10 + (text[1] - '0');
    text += 2;
  } else if (n < 2) {
    return false;
  }
  target->capability = major;
  target->specific = *text == 'a';
  if (text[target->specific]) return false;
  if (target->specific && target->capability < 90) return false;
  for (i = 0; i < AOT__COUNT(aot__capabilities); i++)
    if (aot__capabilities[i] == target->capability) return true;
  return false;
}

static void aot__put_targets(aot__text *text) {
  size_t i;
  for (i = 0; i < AOT__COUNT(aot__capabilities); i++) {
    aot__put(text, "%ssm_%d", i ? ", " : "", aot__capabilities[i]);
    if (aot__capabilities[i] >= 90) aot__put(text, ", sm_%da", aot__capabilities[i]);
  }
}

/* Does a cubin of this target not run on the capability? Say why in `reason`, which may be NULL. */
static bool aot__target_fault(aot__target target, int capability, aot__text *reason) {
  const char *suffix = target.specific ? "a" : "";
  int major = target.capability / 10, minor = target.capability % 10;
  if (target.specific && capability != target.capability)
    aot__put(reason, "sm_%d%s runs on capability %d.%d only", target.capability, suffix, major, minor);
  else if (capability / 10 != major)
    aot__put(reason, "sm_%d%s runs on capability %d.x only", target.capability, suffix, major);
  else if (capability < target.capability)
    aot__put(reason, "sm_%d%s needs capability %d.%d or newer", target.capability, suffix, major, minor);
  else return false;
  aot__put(reason, ", the device is %d.%d", capability / 10, capability % 10);
  return true;
}
