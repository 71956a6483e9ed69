/* Zlib streams (RFC 1950) of deflate data (RFC 1951) to memory of a known size.
 *
 * Nothing is written beyond the output and nothing read beyond the input, whatever the data say. A
 * stream with a preset dictionary is refused: a bundle has none.
 */

enum { AOT__MAX_BITS = 15, AOT__FAST_BITS = 10 };

/* A prefix code. `fast` holds length << 12 | symbol for each value of the next bits, where the code is
 * short; `count` and `symbol` are the canonical code by length, for the longer ones. */
typedef struct aot__huffman {
  uint16_t fast[1 << AOT__FAST_BITS];
  uint16_t count[AOT__MAX_BITS + 1];
  uint16_t symbol[288];
} aot__huffman;

typedef struct aot__inflater {
  const unsigned char *in;
  size_t in_size, in_at;
  unsigned char *out;
  size_t out_size, out_at;
  uint64_t bits;
  int n_bits;
  const char *fault;
  aot__huffman literals, distances;
} aot__inflater;

static bool aot__inflate_fault(aot__inflater *s, const char *fault) {
  s->fault = fault;
  return false;
}

static void aot__refill(aot__inflater *s) {
  while (s->n_bits <= 56 && s->in_at < s->in_size) {
    s->bits |= (uint64_t)s->in[s->in_at++] << s->n_bits;
    s->n_bits += 8;
  }
}

static bool aot__bits(aot__inflater *s, int count, unsigned *value) {
  if (s->n_bits < count) aot__refill(s);
  if (s->n_bits < count) return aot__inflate_fault(s, "the data end too early");
  *value = (unsigned)(s->bits & (((uint64_t)1 << count) - 1));
  s->bits >>= count;
  s->n_bits -= count;
  return true;
}

/* Build the code whose symbols have these lengths. `whole`: a code that leaves bits unused is wrong,
 * unless it has one symbol of one bit, or none. */
static bool aot__huffman_build(aot__huffman *code, const unsigned char *lengths, int n, bool whole) {
  uint16_t next[AOT__MAX_BITS + 2] = {0}, first[AOT__MAX_BITS + 2] = {0};
  int left = 1, used = 0, i;
  memset(code, 0, sizeof *code);
  for (i = 0; i < n; i++) code->count[lengths[i]]++;
  code->count[0] = 0;
  for (i = 1; i <= AOT__MAX_BITS; i++) {
    left = left * 2 - code->count[i];
    if (left < 0) return false;
    used += code->count[i];
    first[i + 1] = (uint16_t)((first[i] + code->count[i]) << 1);
    next[i + 1] = (uint16_t)(next[i] + code->count[i]);
  }
  if (left > 0 && (whole || used > 1 || (used == 1 && code->count[1] != 1))) return false;
  for (i = 0; i < n; i++) {
    int length = lengths[i], value, reversed = 0, b;
    if (!length) continue;
    code->symbol[next[length]++] = (uint16_t)i;
    value = first[length]++;
    if (length > AOT__FAST_BITS) continue;
    for (b = 0; b < length; b++) reversed |= (value >> b & 1) << (length - 1 - b);
    for (; reversed < 1 << AOT__FAST_BITS; reversed += 1 << length)
      code->fast[reversed] = (uint16_t)(length << 12 | i);
  }
  return true;
}

static bool aot__symbol(aot__inflater *s, const aot__huffman *code, unsigned *symbol) {
  unsigned entry;
  int length, value = 0, first = 0, index = 0;
  if (s->n_bits < AOT__MAX_BITS) aot__refill(s);
  entry = code->fast[s->bits & ((1 << AOT__FAST_BITS) - 1)];
  if (entry && (int)(entry >> 12) <= s->n_bits) {
    s->bits >>= entry >> 12;
    s->n_bits -= (int)(entry >> 12);
    *symbol = entry & 0xfff;
    return true;
  }
  for (length = 1; length <= AOT__MAX_BITS && length <= s->n_bits; length++) {
    value |= (int)(s->bits >> (length - 1) & 1);
    if (value - first < code->count[length]) {
      *symbol = code->symbol[index + value - first];
      s->bits >>= length;
      s->n_bits -= length;
      return true;
    }
    index += code->count[length];
    first = (first + code->count[length]) << 1;
    value <<= 1;
  }
  return aot__inflate_fault(s, length > AOT__MAX_BITS ? "a code is not one" : "the data end too early");
}

static bool aot__inflate_stored(aot__inflater *s) {
  unsigned length, check;
  s->bits >>= s->n_bits & 7;
  s->n_bits -= s->n_bits & 7;
  if (!aot__bits(s, 16, &length) || !aot__bits(s, 16, &check)) return false;
  if (length != (check ^ 0xffff)) return aot__inflate_fault(s, "a stored length is wrong");
  for (; length; length--) {
    unsigned byte;
    if (!aot__bits(s, 8, &byte)) return false;
    if (s->out_at == s->out_size) return aot__inflate_fault(s, NULL);
    s->out[s->out_at++] = (unsigned char)byte;
  }
  return true;
}

static bool aot__inflate_codes(aot__inflater *s) {
  static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const unsigned char length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  unsigned symbol, extra;
  for (;;) {
    size_t length, distance;
    if (!aot__symbol(s, &s->literals, &symbol)) return false;
    if (symbol == 256) return true;
    if (symbol < 256) {
      if (s->out_at == s->out_size) return aot__inflate_fault(s, NULL);
      s->out[s->out_at++] = (unsigned char)symbol;
      continue;
    }
    if (symbol > 285) return aot__inflate_fault(s, "a length is not one");
    if (!aot__bits(s, length_bits[symbol - 257], &extra)) return false;
    length = length_base[symbol - 257] + (size_t)extra;
    if (!aot__symbol(s, &s->distances, &symbol)) return false;
    if (symbol > 29) return aot__inflate_fault(s, "a distance is not one");
    /* Distances grow by powers of two: 1, 2, 3, 4, 5 + 1 bit, 7 + 1 bit, 9 + 2 bits, ... */
    distance = symbol < 4 ? symbol + 1 : ((size_t)(2 + (symbol & 1)) << (symbol / 2 - 1)) + 1;
    if (!aot__bits(s, symbol < 4 ? 0 : (int)(symbol / 2 - 1), &extra)) return false;
    distance += extra;
    if (distance > s->out_at) return aot__inflate_fault(s, "a distance points before the start");
    if (length > s->out_size - s->out_at) return aot__inflate_fault(s, NULL);
    for (; length; length--, s->out_at++) s->out[s->out_at] = s->out[s->out_at - distance];
  }
}

static bool aot__inflate_dynamic(aot__inflater *s) {
  static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  unsigned char lengths[286 + 30] = {0};
  unsigned n_literals, n_distances, n_codes, i, value;
  if (!aot__bits(s, 5, &n_literals) || !aot__bits(s, 5, &n_distances) || !aot__bits(s, 4, &n_codes)) return false;
  n_literals += 257;
  n_distances += 1;
  n_codes += 4;
  if (n_literals > 286 || n_distances > 30) return aot__inflate_fault(s, "a table of codes is too long");
  for (i = 0; i < n_codes; i++) {
    if (!aot__bits(s, 3, &value)) return false;
    lengths[order[i]] = (unsigned char)value;
  }
  if (!aot__huffman_build(&s->literals, lengths, 19, true)) return aot__inflate_fault(s, "a table of codes is wrong");
  memset(lengths, 0, sizeof lengths);
  for (i = 0; i < n_literals + n_distances;) {
    unsigned symbol, repeat = 0;
    unsigned char last = 0;
    if (!aot__symbol(s, &s->literals, &symbol)) return false;
    if (symbol < 16) {
      lengths[i++] = (unsigned char)symbol;
      continue;
    }
    if (symbol == 16) {
      if (!i) return aot__inflate_fault(s, "a table of codes repeats nothing");
      last = lengths[i - 1];
    }
    if (!aot__bits(s, symbol == 16 ? 2 : symbol == 17 ? 3 : 7, &repeat)) return false;
    repeat += symbol == 18 ? 11 : 3;
    if (repeat > n_literals + n_distances - i) return aot__inflate_fault(s, "a table of codes is too long");
    while (repeat--) lengths[i++] = last;
  }
  if (!lengths[256]) return aot__inflate_fault(s, "a block has no end");
  if (!aot__huffman_build(&s->literals, lengths, (int)n_literals, false) ||
      !aot__huffman_build(&s->distances, lengths + n_literals, (int)n_distances, false))
    return aot__inflate_fault(s, "a table of codes is wrong");
  return true;
}

static bool aot__inflate_fixed(aot__inflater *s) {
  unsigned char lengths[288], distances[30];
  int i;
  for (i = 0; i < 288; i++) lengths[i] = (unsigned char)(i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8);
  memset(distances, 5, sizeof distances);
  aot__huffman_build(&s->literals, lengths, 288, true);
  /* Two of the 32 distance codes do not exist, so that this code is not whole. */
  memset(&s->distances, 0, sizeof s->distances);
  s->distances.count[5] = 30;
  for (i = 0; i < 30; i++) s->distances.symbol[i] = (uint16_t)i;
  return true;
}

static bool aot__inflate_all(aot__inflater *s) {
  unsigned header, flags, last, kind, check = 0, byte, a = 1, b = 0;
  size_t i;
  if (!aot__bits(s, 8, &header) || !aot__bits(s, 8, &flags)) return false;
  if ((header & 15) != 8 || header >> 4 > 7 || (header << 8 | flags) % 31 || flags & 32)
    return aot__inflate_fault(s, "the header is not zlib's");
  do {
    bool sound;
    if (!aot__bits(s, 1, &last) || !aot__bits(s, 2, &kind)) return false;
    if (kind == 3) return aot__inflate_fault(s, "a block is of no known kind");
    if (kind == 0) sound = aot__inflate_stored(s);
    else sound = (kind == 1 ? aot__inflate_fixed(s) : aot__inflate_dynamic(s)) && aot__inflate_codes(s);
    if (!sound) return false;
  } while (!last);
  s->bits >>= s->n_bits & 7;
  s->n_bits -= s->n_bits & 7;
  for (i = 0; i < 4; i++) {
    if (!aot__bits(s, 8, &byte)) return false;
    check = check << 8 | byte;
  }
  for (i = 0; i < s->out_at;) {
    /* So many additions fit 32 bits before the remainder has to be taken. */
    size_t end = s->out_at - i > 5552 ? i + 5552 : s->out_at;
    for (; i < end; i++) b += a += s->out[i];
    a %= 65521;
    b %= 65521;
  }
  if (check != (b << 16 | a)) return aot__inflate_fault(s, "the check sum is wrong");
  return true;
}

/* Decompress `in` to exactly `out_size` bytes. Return false with a `fault`; it is NULL where the data
 * are sound so far but of another size, or have bytes after their end. */
static bool aot__inflate(const unsigned char *in, size_t in_size, unsigned char *out, size_t out_size,
                         const char **fault, bool *no_memory) {
  aot__inflater *s = (aot__inflater *)AOT_CALLOC(1, sizeof *s);
  bool sound;
  *fault = NULL;
  *no_memory = !s;
  if (!s) return false;
  s->in = in;
  s->in_size = in_size;
  s->out = out;
  s->out_size = out_size;
  sound = aot__inflate_all(s) && s->out_at == out_size && s->in_at == in_size && s->n_bits == 0;
  *fault = s->fault;
  AOT_FREE(s);
  return sound;
}
