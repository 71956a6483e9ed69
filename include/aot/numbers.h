/* Numbers: their text as Python writes it, in every locale, and their rounding to 16 bits. */

static uint64_t aot__double_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static bool aot__is_nan(double value) { return value != value; }
static bool aot__is_inf(double value) { return !aot__is_nan(value) && aot__is_nan(value - value); }

static pthread_once_t aot__plain_once = PTHREAD_ONCE_INIT;
static locale_t aot__plain;

static void aot__plain_make(void) { aot__plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* The locale that has a decimal point, for this thread until aot__leave_plain. */
static locale_t aot__enter_plain(void) {
  pthread_once(&aot__plain_once, aot__plain_make);
  return aot__plain ? uselocale(aot__plain) : (locale_t)0;
}

static void aot__leave_plain(locale_t before) {
  if (before) uselocale(before);
}

static double aot__double_of(const char *text) {
  locale_t before = aot__enter_plain();
  double value = strtod(text, NULL);
  aot__leave_plain(before);
  return value;
}

/* Count the last digit of 1.234e-05 up; 9.99 has no next one of its length. */
static bool aot__next_decimal(char *text) {
  char *at = strchr(text, 'e');
  while (at-- > text) {
    if (*at >= '0' && *at < '9') {
      ++*at;
      return true;
    }
    if (*at == '9') *at = '0';
  }
  return false;
}

/* The shortest decimal that is this double again, laid out as Python's repr does. */
static void aot__put_double(aot__text *text, double value) {
  char found[40];
  locale_t before;
  int precision, exponent, n_digits, i;
  char digits[24];
  const char *at;
  if (!text) return;
  if (aot__is_nan(value)) {
    aot__put(text, "nan");
    return;
  }
  if (aot__is_inf(value)) {
    aot__put(text, value < 0 ? "-inf" : "inf");
    return;
  }
  before = aot__enter_plain();
  for (precision = 0; precision < 17; precision++) {
    snprintf(found, sizeof found, "%.*e", precision, value);
    if (strtod(found, NULL) == value) break;
    /* Above a power of two the doubles lie wider: the neighbour may be the one that is read back. */
    if (aot__next_decimal(found) && strtod(found, NULL) == value) break;
  }
  aot__leave_plain(before);
  at = found;
  if (*at == '-') {
    aot__put(text, "-");
    at++;
  }
  for (n_digits = 0; *at && *at != 'e'; at++)
    if (*at >= '0' && *at <= '9' && n_digits < 20) digits[n_digits++] = *at;
  digits[n_digits] = 0;
  exponent = *at ? atoi(at + 1) : 0;
  if (exponent < -4 || exponent >= 16) {
    aot__put(text, "%c%s%s", digits[0], n_digits > 1 ? "." : "", digits + 1);
    aot__put(text, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
  } else if (exponent < 0) {
    aot__put(text, "0.%.*s%s", -exponent - 1, "000", digits);
  } else {
    for (i = 0; i <= exponent || i < n_digits; i++)
      aot__put(text, "%s%c", i == exponent + 1 ? "." : "", i < n_digits ? digits[i] : '0');
    if (n_digits <= exponent + 1) aot__put(text, ".0");
  }
}

static void aot__put_wide(aot__text *text, bool negative, aot__uwide magnitude) {
  char digits[48];
  int at = sizeof digits - 1;
  digits[at] = 0;
  do digits[--at] = (char)('0' + (int)(magnitude % 10));
  while (magnitude /= 10);
  aot__put(text, "%s%s", negative ? "-" : "", digits + at);
}

/* A string in quotes, as Python's repr; letters beyond ASCII stand as they are. */
static void aot__put_quoted(aot__text *text, const char *value) {
  char quote = strchr(value, '\'') && !strchr(value, '"') ? '"' : '\'';
  aot__put(text, "%c", quote);
  for (; *value; value++) {
    unsigned char c = (unsigned char)*value;
    if (c == (unsigned char)quote || c == '\\') aot__put(text, "\\%c", c);
    else if (c == '\n') aot__put(text, "\\n");
    else if (c == '\r') aot__put(text, "\\r");
    else if (c == '\t') aot__put(text, "\\t");
    else if (c < 32 || c == 127) aot__put(text, "\\x%02x", c);
    else aot__put(text, "%c", c);
  }
  aot__put(text, "%c", quote);
}

/* The bits of the float of `precision` bits (with the hidden one) nearest to `value`, half to even, whose
 * smallest subnormal is 2**lowest; its exponent's field ends below the sign, bit 15. Rounds once, from
 * the double. Return false where a finite value would become infinite. */
static bool aot__round16(double value, int precision, int lowest, uint16_t *bits) {
  uint64_t all = aot__double_bits(value), mantissa = all & (((uint64_t)1 << 52) - 1), rest, half, result;
  int exponent = (int)(all >> 52 & 0x7ff), last, shift;
  uint16_t sign = (uint16_t)(all >> 63 << 15);
  /* All exponent bits set, which is infinity. */
  uint16_t infinity = (uint16_t)(0x7fff >> (precision - 1) << (precision - 1));
  if (exponent == 0x7ff) {
    *bits = (uint16_t)(sign | infinity | (mantissa ? 1u << (precision - 2) : 0));
    return true;
  }
  if (exponent) mantissa |= (uint64_t)1 << 52;
  else exponent = 1;
  /* value is mantissa * 2**(exponent - 1075); `last` is the weight of the result's last bit. */
  last = exponent - 1023 - (precision - 1);
  if (last < lowest) last = lowest;
  shift = last - (exponent - 1075);
  if (shift > 54) shift = 54; /* less than half of the last bit */
  half = (uint64_t)1 << (shift - 1);
  rest = mantissa & ((half << 1) - 1);
  result = mantissa >> shift;
  if (rest > half || (rest == half && result & 1)) result++;
  result += (uint64_t)(last - lowest) << (precision - 1);
  if (result >= infinity) return false;
  *bits = (uint16_t)(sign | result);
  return true;
}
