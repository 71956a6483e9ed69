/* Values to the bytes that a kernel reads: every scalar by the kernel's type, never by C's. */

/* What a call passes for one parameter; not `known` where it is left out. */
typedef struct aot__value {
  bool known, pointer;
  const char *dtype; /* of a pointer; NULL where it is not known */
  int aligned;       /* to 16 bytes: 1, 0, or -1 where it is not known */
  uint64_t address;
  aot__const number; /* a BOOL, INT or FLOAT of a scalar; of a constexpr anything */
} aot__value;

static double aot__as_double(const aot__const *number) {
  double value;
  if (number->kind == AOT_ARG_FLOAT) return number->number;
  value = (double)number->magnitude;
  return number->negative ? -value : value;
}

/* Is the integer one of the type's? */
static bool aot__fits(const aot__scalar *scalar, const aot__const *number) {
  uint64_t most;
  if (number->large) return false;
  if (!scalar->is_signed) {
    most = scalar->bits == 64 ? UINT64_MAX : ((uint64_t)1 << scalar->bits) - 1;
    return !number->negative && number->magnitude <= most;
  }
  most = (uint64_t)1 << (scalar->bits - 1);
  return number->magnitude <= (number->negative ? most : most - 1);
}

/* Write a number as the little-endian bytes of a scalar type, rounded to nearest even once. A bool or an
 * integer may stand for a float, a bool for an integer; a float never for an integer. Infinities and NaN
 * are floats; a finite value that would become infinite does not fit. Return false where it does not
 * fit. */
static bool aot__pack_scalar(const aot__scalar *scalar, const aot__const *number, unsigned char bytes[8]) {
  uint64_t bits;
  unsigned i;
  if (scalar->integer) {
    if (number->kind == AOT_ARG_FLOAT || !aot__fits(scalar, number)) return false;
    bits = number->negative ? 0 - number->magnitude : number->magnitude;
  } else {
    double value = aot__as_double(number);
    if (number->large) return false;
    if (scalar->size == 8) {
      bits = aot__double_bits(value);
    } else if (scalar->size == 4) {
      float narrow;
      uint32_t half;
      /* Halfway to the float that does not exist: from there on it rounds to infinity. */
      const double overflow = 340282356779733661637539395458142568448.0;
      if (!aot__is_inf(value) && (value >= overflow || value <= -overflow)) return false;
      narrow = (float)value;
      memcpy(&half, &narrow, sizeof half);
      bits = half;
    } else {
      uint16_t half;
      bool brain = scalar->triton[0] == 'b';
      if (!aot__round16(value, brain ? 8 : 11, brain ? -133 : -24, &half)) return false;
      bits = half;
    }
  }
  for (i = 0; i < scalar->size; i++) bytes[i] = (unsigned char)(bits >> (8 * i));
  return true;
}

/* Can the number not be passed as this type? Say why in `reason`, which may be NULL. */
static bool aot__scalar_fault(const char *name, const aot__scalar *scalar, const aot__const *number,
                              aot__text *reason) {
  unsigned char bytes[8];
  if (aot__pack_scalar(scalar, number, bytes)) return false;
  aot__put(reason, "%s = ", name);
  aot__put_const(reason, number);
  if (scalar->integer && number->kind == AOT_ARG_FLOAT)
    aot__put(reason, " is a float, %s is %s", name, scalar->name);
  else aot__put(reason, " does not fit %s", scalar->name);
  return true;
}

/* Is the number a multiple of 16? */
static bool aot__sixteen(const aot__const *number) {
  double value = number->number;
  if (number->kind != AOT_ARG_FLOAT) return number->magnitude % 16 == 0;
  if (aot__is_nan(value) || aot__is_inf(value)) return false;
  if (value < 0) value = -value;
  if (value < 16) return value == 0;
  value /= 16; /* exact: only the exponent changes */
  return value >= 4503599627370496.0 || (double)(uint64_t)value == value;
}

static bool aot__is_one(const aot__const *number) {
  return number->kind == AOT_ARG_FLOAT ? number->number == 1 : number->magnitude == 1 && !number->negative;
}
